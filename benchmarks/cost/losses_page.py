"""The results of the benchmark as tables."""

from __future__ import annotations

from benchmarks.cost.loss_case import OURS, PML, Case
from benchmarks.cost.machine import name_machines
from benchmarks.engine.results import markdown

FITS, NO_FIT = "fits", "does not fit"
_NAMES = {OURS: "ours", PML: "PML's"}

Results = dict[Case, dict[str, str]]


def page(results: Results) -> str:
    """Returns the tables, in Markdown."""
    first = next(iter(results.values()))
    classes = sorted({case.classes for case in results}, reverse=True)
    parts = [
        "# Cost of a step of every loss, forward and backward, beside PML's CrossBatchMemory",
        f"{name_machines(results.values())}; batch 64 (16 classes by 4), "
        f"d = 512, a full memory of *n* rows; *ours* is XBN. Medians of at most {first['repeats']} steps. "
        f"Every case has a process of its own, {float(first['memory_limit_gb']):g} GB beyond what the "
        f"libraries take, and {_seconds(first)} for a step. Written by `benchmarks.cost losses`.",
        "✗: does not fit. >: takes longer than that. Where a memory does not fit or takes too long, larger "
        "ones are not tried.",
        "## What fits",
        "How many of the losses, each without a miner and with its usual one, fit and are within the time:",
        _fitting(results, classes),
    ]
    for title, column in (("Time of a step (ms)", "ms"), ("Peak memory (MB), rows included", "peak_mb")):
        for kind in classes:
            parts += [f"## {title}, {kind} classes", _by_loss(results, column, [kind], _NAMES)]
    parts += ["## Time of a step of ours, over that of SupConLoss without miner"]
    parts += [_by_loss(results, "times_supcon", classes, {OURS: ""})]
    return "\n\n".join(parts) + "\n"


def _fitting(results: Results, classes: list[str]) -> str:
    heads = [(kind, memory) for kind in classes for memory in _NAMES]
    heads = [head for head in heads if head in {(case.classes, case.memory) for case in results}]
    lines = []
    for size in sorted({case.rows for case in results}):
        outcomes = [
            [row["outcome"] for case, row in results.items() if case[2:] == (*head, size)] for head in heads
        ]
        cells = [f"{found.count(FITS)} of {len(found)}" if found else "" for found in outcomes]
        lines.append([f"{size:,}", *cells])
    return markdown(["n", *(f"{_NAMES[memory]}, {kind} classes" for kind, memory in heads)], lines)


def _by_loss(results: Results, column: str, classes: list[str], names: dict[str, str]) -> str:
    """Returns a table with a line for every loss and miner, and a column for every measured memory."""
    heads = {
        (kind, memory, size): f"{name}, {size:,}" if name else f"{size:,}, {kind} classes"
        for kind in classes
        for size in sorted({case.rows for case in results})
        for memory, name in names.items()
        if any(case[2:] == (kind, memory, size) for case in results)
    }
    pairs = sorted({case[:2] for case in results}, key=lambda pair: (pair[0], pair[1] != "none"))
    lines = [
        [*pair, *(_cell(results.get(Case(pair[0], pair[1], *head)), column) for head in heads)]
        for pair in pairs
    ]
    return markdown(["loss", "miner", *heads.values()], lines, ["loss", "miner"])


def _cell(row: dict[str, str] | None, column: str) -> str:
    if row is None:
        return ""
    outcome = row["outcome"]
    if outcome != FITS:
        return "✗" if outcome == NO_FIT else "fails" if "fails" in outcome else f"> {_seconds(row)}"
    value = float(row.get(column) or "nan")
    if value != value:
        return "?"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _seconds(row: dict[str, str]) -> str:
    return f"{float(row['time_limit_s']):g} s"
