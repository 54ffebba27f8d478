"""The page beside a CSV file: one table of some of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cost.machine import name_machines
from benchmarks.engine.results import markdown, write_csv

_OF_TENTHS = "pml_ms", "ours_ms", "step_ms", "loss_ms", "quarter_ms"


def write_table(
    rows: Sequence[dict[str, Any]],
    columns: Mapping[str, str],
    path: Path,
    title: str,
    measured: str,
    *more: str,
) -> str:
    """Writes a CSV file, and beside it a page with a table of some columns, whose text is returned.

    Args:
        rows: with the columns of `machine.describe_fully`.
        columns: the titles of those that the page shows.
        path: of the CSV file.
        title: of the page.
        measured: what was measured; the machines are named besides.
        more: paragraphs and tables that follow the table.
    """
    write_csv([*rows], path)
    words = [title for name, title in columns.items() if not str(rows[0][name]).lstrip("-")[:1].isdigit()]
    table = markdown(columns.values(), ([cell(name, row[name]) for name in columns] for row in rows), words)
    parts = [f"# {title}", f"{measured} Measured on: {name_machines(rows)}.", table, *more]
    text = "\n\n".join(parts) + "\n"
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    return text


def cell(name: str, value: Any) -> str:
    """Returns a figure as it is printed, by what it is called."""
    if name.startswith("share"):
        return f"{100 * float(value):.0f} %"
    if "." not in str(value):
        return str(value)
    return f"{float(value):.{1 if name in _OF_TENTHS else 2}f}"
