"""What this version was measured to do on a GPU: training steps, steps of the loss, and the tests."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.engine.results import markdown, read_csv

Row = dict[str, str]
_WORDS = ("Network", "AMP", "Step", "Stored in", "Miner", "nonfinite", "Tests")  # columns on the left
_NOTHING = "This version has not been measured on a GPU, and its tests have not been run on one.\n"
_NETWORK = """\
*A training step*: a network, the loss and the backward pass. *Share* is the part of the step that a step
without memory does not have. *Two products* is the least that a memory can cost: the similarities of the
batch to all rows, and their gradient. *Captured* is the whole step as one CUDA graph, which spares the
network's launches too, so that its share may be below 0. GradCache has no memory, and four times the batch.
Peak memory counts from when a step is built.
"""
_STEPS = """\
*A step of the loss*, forward and backward with SupConLoss: its time by itself, also over that of PML's class
and of the two products; how long its call keeps the host, and how much it adds to the GPU's time, behind
20 ms of a network's work; kernels that are launched, and those that were compiled for it; numbers of the GPU
that the host reads; and the peak of memory in memories of stored rows. PML's class stores rows in float32
alone.
"""
_TESTS = "*Tests* that compare what the GPU computes, `pytest -m device`:\n"


def gpu_report(folder: Path) -> str:
    """Returns the tables of a folder that ``benchmarks.on_gpu`` and the tests have written.

    Rows of a CPU are left out. Of what is not there a sentence says so.
    """
    parts = [
        _of_csv(folder / "gpu_network.csv", _NETWORK, _network_table),
        _of_csv(folder / "gpu_steps.csv", _STEPS, _steps_table),
        _tests(folder / "tests.xml"),
    ]
    if not any(parts):
        return _NOTHING
    missing = ("A training step", "A step of the loss", "A run of the tests")
    return "\n".join(
        part or f"{name} of this version has not been measured on a GPU.\n"
        for name, part in zip(missing, parts, strict=True)
    )


def _of_csv(path: Path, text: str, table: Callable[[list[Row]], str]) -> str:
    """Returns a text and a table for every GPU of a file."""
    machines: dict[tuple[str, ...], list[Row]] = {}
    for row in read_csv(path):
        if row["driver"] != "none":
            machines.setdefault((row["device"], row["driver"], row["torch"]), []).append(row)
    return "\n".join(f"{text}\n{_machine(*machine)}\n{table(rows)}" for machine, rows in machines.items())


def _machine(device: str, driver: str, torch: str) -> str:
    return f"**{device}**, driver {driver}, torch {torch}.\n"


def _network_table(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        same = _others(row, rows, "network", "precision", "batch", "rows")
        share = "–"
        if (
            row["ms"]
            and same.get("no memory", {}).get("ms")
            and row["method"] not in ("no memory", "GradCache")
        ):
            share = f"{100 * (1 - float(same['no memory']['ms']) / float(row['ms'])):.1f} %"
        peak = f"{float(row['peak_mb']) / 1000:.1f}" if row["peak_mb"] else "–"
        batch = str(int(row["batch"]) * (4 if row["method"] == "GradCache" else 1))
        lines.append(
            [row["network"], row["precision"], batch, row["method"], _number(row, "ms"), share, peak]
        )
    return _table(["Network", "AMP", "Batch", "Step", "ms", "share", "peak GB"], lines)


def _steps_table(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        same_size = _others(row, rows, "rows", "batch")
        pml = _others(row, rows, "rows", "batch", "miner").get("PML")
        products = _others(row, rows, "rows", "batch", "dtype").get(
            "two products", same_size.get("two products")
        )
        ratios = [_ratio(row, pml), _ratio(row, products)]
        case = [f"{int(row['rows']):,}", row["batch"], row["dtype"], row["miner"]]
        is_ours = row["method"] not in ("PML", "two products")
        figures = [_number(row, name) for name in ("host_ms", "added_ms")]
        counts = [_number(row, name, 0) for name in ("launches", "compiled_kernels", "reads")]
        lines.append(
            [
                *(*case, row["nonfinite"] if is_ours else "–", row["method"], _number(row, "ms")),
                *(*ratios, *figures, *counts, _number(row, "peak_memories")),
            ]
        )
    columns = [
        "Rows",
        "Batch",
        "Stored in",
        "Miner",
        "nonfinite",
        "Step",
        "ms",
        "over PML's",
        "over products",
    ]
    columns += ["host ms", "added ms", "launches", "compiled kernels", "reads", "peak"]
    return _table(columns, lines)


def _others(row: Row, rows: Iterable[Row], *names: str) -> dict[str, Row]:
    """Returns the rows that are equal in these columns, by method; of several, the first."""
    found: dict[str, Row] = {}
    for other in rows:
        if all(other[name] == row[name] for name in names):
            found.setdefault(other["method"], other)
    return found


def _ratio(row: Row, other: Row | None) -> str:
    if other is None or other is row or not (row["ms"] and other["ms"]):
        return "–"
    return f"{float(row['ms']) / float(other['ms']):.2f}"


def _number(row: Row, name: str, digits: int = 2) -> str:
    """Returns a number of a row; a dash where there is none, and why if the row says so."""
    if row[name]:
        return f"{float(row[name]):,.{digits}f}"
    return row["message"].partition(":")[0] or "–"


def _tests(path: Path) -> str:
    """Returns how many tests of every file a junit file has, and how they went."""
    if not path.exists():
        return ""
    suite = next(ET.parse(path).getroot().iter("testsuite"))
    machine = {found.get("name"): found.get("value", "") for found in suite.iter("property")}
    if machine.get("driver") in (None, "none"):
        return ""
    files: dict[str, list[ET.Element]] = {}
    for test in suite.iter("testcase"):
        files.setdefault("/".join(test.get("classname", "").split(".")), []).append(test)
    lines = []
    for name, tests in files.items():
        failed = sum(test.find("failure") is not None or test.find("error") is not None for test in tests)
        skipped = sum(test.find("skipped") is not None for test in tests)
        passed = len(tests) - failed - skipped
        seconds = sum(float(test.get("time", 0)) for test in tests)
        lines.append([f"`{name}.py`", str(passed), str(failed), str(skipped), f"{seconds:.1f}"])
    table = _table(["Tests", "passed", "failed", "skipped", "seconds"], lines)
    return f"{_TESTS}\n{_machine(machine['device'], machine['driver'], machine['torch'])}\n{table}"


def _table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return markdown(columns, lines, _WORDS) + "\n"
