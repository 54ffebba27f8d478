"""Results as tables and as CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeVar, get_type_hints

from benchmarks.engine.history import History

T = TypeVar("T")
_types: Any = lru_cache(get_type_hints)
RESULTS = Path(__file__).parents[1] / "results"


def table(rows: Mapping[str, Mapping[str, float]], columns: Mapping[str, str]) -> str:
    """Returns a Markdown table with one row per method, aligned for a terminal."""
    lines = ["| method      | " + " | ".join(f"{title:>9}" for title in columns.values()) + " |"]
    lines.append("|:------------|" + "|".join(["----------:"] * len(columns)) + "|")
    for method, row in rows.items():
        cells = [f"{row[name]:9.{3 if name in ('drift', 'loss') else 1}f}" for name in columns]
        lines.append(f"| {method:<11} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def markdown(columns: Iterable[str], lines: Iterable[Iterable[str]], words: Iterable[str] = ()) -> str:
    """Returns a Markdown table whose columns stand on the right, but for those of ``words``."""
    columns, words = list(columns), set(words)
    sides = [":--" if name in words else "--:" for name in columns]
    rows = ["| " + " | ".join(columns) + " |", "|" + "|".join(sides) + "|"]
    return "\n".join([*rows, *("| " + " | ".join(line) + " |" for line in lines)])


def spread(values: Sequence[float], form: str = ".1f") -> str:
    """Returns the mean, and of several values the standard deviation (with n - 1): ± is for intervals."""
    deviation = f" (sd {stdev(values):{form.lstrip('+')}})" if len(values) > 1 else ""
    return f"{fmean(values):{form}}{deviation}" if values else "–"


def write_csv(rows: list[dict[str, Any]], path: Path) -> None:
    """Writes rows, their keys as the header; a file that is there stays until all is written."""
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Returns rows of a CSV file, none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run_of(kind: type[T], row: Mapping[str, str]) -> T:
    """Returns the run that a row is of: a dataclass or a named tuple, whose fields are among the columns."""
    return kind(**{name: of(row[name]) for name, of in _types(kind).items()})


def read_runs(kind: type[T], path: Path) -> list[tuple[T, dict[str, str]]]:
    """Returns rows of a CSV file, each behind the run that it is of."""
    return [(run_of(kind, row), row) for row in read_csv(path)]


def append_csv(rows: list[dict[str, Any]], path: Path) -> None:
    """Adds rows to a CSV file, and columns where they bring new ones; numbers to six digits."""
    new = [
        {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()}
        for row in rows
    ]
    write_csv([*read_csv(path), *new], path)


def write_results(
    histories: Mapping[str, History], results: Mapping[str, Mapping[str, float]], folder: Path
) -> None:
    """Writes ``results.csv``, a row per method, and ``epochs.csv``, one per method and epoch."""
    write_csv([{"method": name, **row} for name, row in results.items()], folder / "results.csv")
    epochs = [{"method": name, **row} for name, history in histories.items() for row in history.epochs]
    write_csv(epochs, folder / "epochs.csv")
