"""What was measured on GPUs as tables, a part for every device."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

Row = dict[str, str]
_NOTED = "inf"  # the tolerance of what is counted, and not judged
_NOTHING = """\
Nothing has been measured on a GPU yet. With one at hand, a clone of the repository, torch and
pytorch-metric-learning,

```console
$ python -m benchmarks.on_gpu --output on_gpu --parts contract
```

takes a minute or two, and `--parts contract cost` some five more. Both write CSV files. Please attach them
to an issue, also if every check has passed.
"""


def gpu_report(folder: Path) -> str:
    """Returns the tables of a folder that ``benchmarks.on_gpu`` has written, or how to write one.

    Rows of a CPU are left out.
    """
    checks, costs, runs, processes = (
        [row for row in _read(folder / name) if row["driver"] not in ("", "none")]
        for name in ("gpu_contract.csv", "gpu_cost.csv", "study_runs.csv", "gpu_processes.csv")
    )
    parts = []
    for device, driver, torch in dict.fromkeys(_machine(row) for row in (*checks, *costs, *runs)):
        machine = device, driver, torch
        parts.append(f"**{device}**, driver {driver}, torch {torch}.\n")
        if mine := [row for row in checks if _machine(row) == machine]:
            parts.append(_checks_table(mine))
        if mine := [row for row in costs if _machine(row) == machine]:
            parts.append(_costs_table(mine))
        if mine := [row for row in runs if _machine(row) == machine]:
            counts = [row for row in processes if _machine(row) == machine]
            parts.append(_runs_table(mine, counts))
    return "\n".join(parts) if parts else _NOTHING


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{"driver": "", **row} for row in csv.DictReader(file)]


def _machine(row: Row) -> tuple[str, str, str]:
    return row["device"], row["driver"], row["torch"]


def _checks_table(rows: Sequence[Row]) -> str:
    """Every kind of check in a line: how many passed, and the largest error."""
    lines = []
    for name, dtype in dict.fromkeys((row["name"], row["dtype"]) for row in rows):
        mine = [row for row in rows if (row["name"], row["dtype"]) == (name, dtype)]
        passed = sum(row["passed"] == "True" for row in mine)
        worst = max(mine, key=lambda row: float(row["error"]))
        tolerance = "noted" if worst["tolerance"] == _NOTED else worst["tolerance"]
        lines.append([name, dtype, f"{passed} of {len(mine)}", worst["error"], tolerance, worst["case"]])
    columns = ["Check", "dtype", "passed", "largest error", "allowed", "in the case"]
    return _table(columns, lines)


def _costs_table(rows: Sequence[Row]) -> str:
    """Time of a step forward and backward, beside PML's class and the two matrix products alone."""
    steps: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("loss", "miner", "rows", "classes", "batch", "dtype"))
        steps.setdefault(key, {})[row["method"]] = row
    lines = []
    for key, methods in steps.items():
        floor = methods.get("two products", {}).get("ms")
        for method, row in methods.items():
            to_floor = f"{float(row['ms']) / float(floor):.2f}" if floor and row["ms"] else "–"
            ratio = f"{float(row['ratio']):.2f}" if row["ratio"] else "–"
            time = f"{float(row['ms']):.2f}" if row["ms"] else row["message"].partition(":")[0]
            lines.append([*key, method, time, ratio, to_floor, row["launches"], row["peak_mb"]])
    columns = ["Loss", "Miner", "Rows", "Classes", "Batch", "Precision", "Method", "ms", "of PML's"]
    return _table([*columns, "of two products", "launches", "peak MB"], lines)


def _runs_table(rows: Sequence[Row], processes: Sequence[Row]) -> str:
    """Recall@1 of the study's runs, the mean of their seeds."""
    settings: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.get("recall_at_1"):
            key = tuple(row[name] for name in ("regime", "norm", "batch_size", "method"))
            settings.setdefault(key, []).append(row)
    lines = [
        [*key, f"{fmean(float(row['recall_at_1']) for row in mine):.1f}", str(len(mine))]
        for key, mine in sorted(settings.items())
    ]
    text = _table(["Regime", "Batch normalization", "Batch", "Method", "Recall@1", "seeds"], lines)
    rates = ", ".join(f"{row['processes']}: {float(row['steps_per_second']):.0f}" for row in processes)
    return text + (f"\nSteps a second, of so many processes side by side: {rates}.\n" if rates else "")


def _table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [columns, ["--"] * len(columns), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
