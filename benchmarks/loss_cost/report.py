"""The results of the benchmark as CSV and tables."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.engine.measuring import name_of
from benchmarks.engine.results import markdown, read_csv, write_csv
from benchmarks.loss_cost.case import OURS, PML

FITS, NO_FIT = "fits", "does not fit"
_KEY = ("memory", "loss", "miner", "classes", "rows")
_NAMES = {OURS: "ours", PML: "PML's"}

Row = dict[str, str]
Results = dict[tuple[str, ...], Row]


def key_of(result: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(str(result[name]) for name in _KEY)


def read(path: Path) -> Results:
    return {key_of(row): row for row in read_csv(path)}


def write(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(_sorted(results), path)


def write_report(results: Results, path: Path) -> None:
    """Writes the tables beside the CSV."""
    path.with_suffix(".md").write_text(_page(_sorted(results)))


def _sorted(results: Results) -> list[Row]:
    """By loss, without miner first."""
    return sorted(
        results.values(),
        key=lambda r: (r["loss"], r["miner"] != "none", r["classes"] == "10", int(r["rows"]), r["memory"]),
    )


def _page(rows: list[Row]) -> str:
    first, classes = rows[0], sorted({row["classes"] for row in rows}, reverse=True)
    device = name_of(torch.device(first["device"]))
    parts = [
        "# Cost of a step of every loss, forward and backward, beside PML's CrossBatchMemory",
        f"{device}, {first['threads']} thread, torch {torch.__version__}, pytorch-metric-learning "
        f"{version('pytorch-metric-learning')}, Python {platform.python_version()}; batch 64 (16 classes by "
        "4), d = 512, a full memory of *n* rows; *ours* is XBN. Medians of at most "
        f"{first['repeats']} steps. Every case has a process of its own, {_gigabytes(first)} beyond what the "
        f"libraries take, and {_seconds(first)} for a step. Written by `benchmarks.loss_cost`.",
        "✗: does not fit. >: takes longer than that. Where a memory does not fit or takes too long, larger "
        "ones are not tried.",
        "## What fits",
        "How many of the losses, each without a miner and with its usual one, fit and are within the time:",
        _what_fits(rows, classes),
    ]
    sizes = _sizes(rows)
    for title, column in (("Time of a step (ms)", "ms"), ("Peak memory (MB), rows included", "peak_mb")):
        for kind in classes:
            heads = {
                f"{name}, {int(size):,}": (memory, kind, size)
                for size in sizes
                for memory, name in _NAMES.items()
            }
            parts += [f"## {title}, {kind} classes", _by_loss(rows, column, heads)]
    of_ours = {f"{int(size):,}, {kind} classes": (OURS, kind, size) for kind in classes for size in sizes}
    parts += [
        "## Time of a step of ours, over that of SupConLoss without miner",
        _by_loss(rows, "times_supcon", of_ours),
    ]
    if kept := _kept(rows, classes):
        parts += ["## What miners keep", "Of the pairs or triplets of a step, on average over cases.", kept]
    return "\n\n".join(parts) + "\n"


def _what_fits(rows: list[Row], classes: list[str]) -> str:
    pairs = [(kind, memory) for kind in classes for memory in (OURS, PML)]
    pairs = [x for x in pairs if x in {(row["classes"], row["memory"]) for row in rows}]
    lines = []
    for size in _sizes(rows):
        cells = []
        for kind, memory in pairs:
            of_kind = [
                row["outcome"] == FITS
                for row in rows
                if (row["memory"], row["classes"], row["rows"]) == (memory, kind, size)
            ]
            cells.append(f"{sum(of_kind)} of {len(of_kind)}" if of_kind else "")
        lines.append([f"{int(size):,}", *cells])
    heads = [f"{_NAMES[memory]}, {kind} classes" for kind, memory in pairs]
    return markdown(["n", *heads], lines)


def _by_loss(rows: list[Row], column: str, heads: dict[str, tuple[str, str, str]]) -> str:
    """A line for every loss and miner.

    Args:
        heads: of the columns, with the memory, classes and size of each; those without cases are left out.
    """
    of_key = {key_of(row): row for row in rows}
    measured = {(row["memory"], row["classes"], row["rows"]) for row in rows}
    heads = {name: of_head for name, of_head in heads.items() if of_head in measured}
    lines = [
        [
            loss,
            miner,
            *(_cell(of_key.get((memory, loss, miner, *rest)), column) for memory, *rest in heads.values()),
        ]
        for loss, miner in dict.fromkeys((row["loss"], row["miner"]) for row in rows)
    ]
    return markdown(["loss", "miner", *heads], lines, ["loss", "miner"])


def _kept(rows: list[Row], classes: list[str]) -> str:
    lines = []
    for miner in sorted({row["miner"] for row in rows} - {"none"}):
        for what in ("positives", "negatives", "triplets"):
            shares = [
                [
                    float(row[f"kept_{what}"])
                    for row in rows
                    if (row["miner"], row["classes"]) == (miner, kind) and row.get(f"kept_{what}")
                ]
                for kind in classes
            ]
            if any(shares):
                means = [f"{100 * sum(of) / len(of):.3g} %" if of else "" for of in shares]
                lines.append([miner, what, *means])
    heads = ["miner", "of", *(f"{kind} classes" for kind in classes)]
    return markdown(heads, lines, ["miner", "of"]) if lines else ""


def _sizes(rows: list[Row]) -> list[str]:
    return sorted({row["rows"] for row in rows}, key=int)


def _cell(row: Row | None, column: str) -> str:
    if row is None:
        return ""
    if row["outcome"] != FITS:
        return {NO_FIT: "✗"}.get(
            row["outcome"], "fails" if "fails" in row["outcome"] else f"> {_seconds(row)}"
        )
    value = float(row.get(column) or "nan")
    if value != value:
        return "?"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _seconds(row: Row) -> str:
    return f"{float(row['time_limit_s']):g} s"


def _gigabytes(row: Row) -> str:
    return f"{float(row['memory_limit_gb']):g} GB"
