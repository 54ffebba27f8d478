"""What was measured on GPUs with an earlier version as tables, a part for every device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.engine.results import markdown, read_csv, run_of
from benchmarks.study.cases import Case

Row = dict[str, str]
_OURS = ("XBN", "AXBN", "PC-XBN", "SC-XBN")
# Columns that stand on the left.
_WORDS = {"Loss", "Miner", "Precision", "Regime", "Method", "Batch normalization"}


def earlier_report(folder: Path) -> str:
    """Returns the tables of a folder that ``benchmarks.on_gpu`` has written; empty if it holds none.

    Rows of a CPU are left out, but for the study's runs: they are what those on a GPU stand beside.
    """
    names = "gpu_behind.csv", "gpu_cost.csv", "gpu_processes.csv", "study_runs.csv"
    files = [read_csv(folder / name) for name in names]
    on_cpu = [row for row in files[-1] if row.get("driver") == "none"]
    behind, costs, processes, runs = (
        [row for row in rows if row.get("driver", "") not in ("", "none")] for rows in files
    )
    parts = []
    for machine in dict.fromkeys(_machine(row) for row in (*behind, *costs, *runs)):
        device, driver, torch = machine

        def of_machine(rows: Sequence[Row], machine: tuple[str, ...] = machine) -> list[Row]:
            return [row for row in rows if _machine(row) == machine]

        parts.append(f"**{device}**, driver {driver}, torch {torch}.\n")
        tables: list[tuple[str, list[Row], Callable[[list[Row]], str]]] = [
            (_BEHIND, of_machine(behind), _behind_table),
            (_COSTS, of_machine(costs), _costs_table),
        ]
        parts += [f"{text}\n{table(rows)}" for text, rows, table in tables if rows]
        if mine := of_machine(runs):
            parts.append(f"{_RUNS}\n{_runs_table(mine, on_cpu, of_machine(processes))}")
    return "\n".join(parts)


_BEHIND = """\
*What a step adds behind a network*: milliseconds, forward and backward with SupConLoss. The GPU is given
20 ms of matrix products, as of a network, and then the step; the table has the time that is added to that of
the products, by default and (`"ignore"`) with `nonfinite="ignore"`. *Kernels* is the GPU's own time for the
step.
"""
_COSTS = """\
*A step by itself*, by turns with one of PML's class on the same tensors: milliseconds of PML's, and the time
of the others as a multiple of it, by default, with launches and peak memory without the stored rows. A dash
means not measured.
"""
_RUNS = """\
*Runs of the study*: Recall@1, the mean of so many seeds, and that of the same seeds on a CPU.
"""


def _machine(row: Row) -> tuple[str, ...]:
    return row["device"], row["driver"], row["torch"]


def _grouped(rows: Iterable[Row], *names: str) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    """Yields the rows that are equal in these columns, in the order in which they come first."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    yield from groups.items()


def _behind_table(rows: Sequence[Row]) -> str:
    """Time that a step adds, a line for every size and kind of memory."""
    lines = []
    for (size, batch), mine in sorted(_grouped(rows, "rows", "batch"), key=lambda x: [*map(int, x[0])]):
        found = {(row["method"], row["nonfinite"]): row for row in mine}
        ways = [("PML", ""), ("XBN", "raise"), *((method, "ignore") for method in _OURS)]
        added = [_number(found.get(way), "added_ms") for way in ways]
        kernels = [_number(found.get(way), "kernel_ms") for way in (("PML", ""), ("XBN", "ignore"))]
        lines.append([f"{int(size):,}", batch, *added, *kernels])
    ours = [f'{method}, `"ignore"`' for method in _OURS]
    columns = ["Rows", "Batch", "PML's class", "XBN", *ours, "kernels of PML's", "kernels of XBN"]
    return _table(columns, lines)


def _costs_table(rows: Sequence[Row]) -> str:
    """Time of a step, a line for every case."""
    lines = []
    for (loss, miner, dtype), mine in _grouped(rows, "loss", "miner", "dtype"):
        cases = _grouped(mine, "rows", "classes", "batch")
        for (size, classes, batch), found in sorted(cases, key=lambda x: [*map(int, x[0])]):
            by = {row["method"]: row for row in found}
            times = [_number(by.get("PML"), "ms")]
            times += [_number(by.get(method), "ratio") for method in (*_OURS, "two products")]
            counts = [_number(by.get(method), "launches", 0) for method in ("PML", "XBN")]
            peaks = [_number(by.get(method), "peak_mb", 0) for method in ("PML", "XBN")]
            case = [loss, miner, dtype, f"{int(size):,}", f"{int(classes):,}", batch]
            lines.append([*case, *times, *counts, *peaks])
    columns = ["Loss", "Miner", "Precision", "Rows", "Classes", "Batch", "PML's, ms", *_OURS, "two products"]
    columns += ["launches of PML's", "of XBN", "peak MB of PML's", "of XBN"]
    return _table(columns, lines)


def _number(row: Row | None, name: str, digits: int = 2) -> str:
    """Returns a number of a row; a dash where there is none, and why if the row says so."""
    if row is None:
        return "–"
    if row[name]:
        return f"{float(row[name]):,.{digits}f}"
    return row["message"].partition(":")[0] or "–"


def _runs_table(rows: Sequence[Row], on_cpu: Sequence[Row], processes: Sequence[Row]) -> str:
    cpu = {run_of(Case, row): row for row in on_cpu}
    done = (row for row in rows if row.get("recall_at_1"))
    lines = []
    for key, mine in sorted(_grouped(done, "regime", "norm", "batch_size", "method")):
        same = [cpu.get(run_of(Case, row)) for row in mine]
        there = [float(row["recall_at_1"]) for row in same if row is not None and row["recall_at_1"]]
        beside = f"{fmean(there):.1f}" if len(there) == len(mine) else "–"
        here = fmean(float(row["recall_at_1"]) for row in mine)
        lines.append([*key, f"{here:.1f}", beside, str(len(mine))])
    columns = ["Regime", "Batch normalization", "Batch", "Method", "Recall@1", "on a CPU", "seeds"]
    rates = ", ".join(f"{row['processes']}: {float(row['steps_per_second']):.0f}" for row in processes)
    said = f"\nSteps a second of all processes together, by their number: {rates}.\n" if rates else ""
    return _table(columns, lines) + said


def _table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return markdown(columns, lines, _WORDS) + "\n"
