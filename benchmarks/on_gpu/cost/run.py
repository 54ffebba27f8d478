"""Measures all cases, each method in turn with PML's class, and writes a row for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.cost.embeddings import Embeddings
from benchmarks.cost.harness import WARM_UP, Peak, compare, count_launches, take_turns
from benchmarks.cost.machine import describe
from benchmarks.engine.measuring import milliseconds, release_memory
from benchmarks.on_gpu.attempt import attempt
from benchmarks.on_gpu.cost.case import PML, Case, cases
from benchmarks.on_gpu.cost.subject import Batch, build_step, draw_batch
from benchmarks.on_gpu.deadline import Deadline
from benchmarks.on_gpu.rows import is_finding
from benchmarks.on_gpu.table import Table

FILE = "gpu_cost.csv"
_KEY = ("loss", "miner", "rows", "classes", "batch", "dtype", "method", "device", "torch")
COLUMNS = (
    *_KEY[:7],
    "ms",
    "pml_ms",
    "ratio",
    "launches",
    "peak_mb",
    "pairs",
    "message",
    "device",
    "driver",
    "torch",
)
_PAIRS, _TINY_PAIRS = 20, 1
_LONGEST = 10.0  # seconds of a method
Row = dict[str, Any]
Step = Callable[[Batch], None]


def run(folder: Path, device: torch.device, deadline: Deadline, is_tiny: bool) -> int:
    """Writes a row for every method of a case that has none yet, as far as time allows.

    Returns how many methods have failed. That PML's class runs out of memory is a finding, and no failure.
    """
    table, machine = Table(folder / FILE, COLUMNS, _KEY), describe(device)
    failed = 0
    for case in cases(is_tiny):
        keys = {method: {**_key(case, method), **machine} for method in (PML, *case.methods)}
        missing = {method: key for method, key in keys.items() if not table.has(key)}
        if not missing:
            continue
        if not deadline.allows(_LONGEST):
            print("cost: no time is left; the same command goes on")
            break
        failed += _measure_case(case, missing, table, device, deadline, _TINY_PAIRS if is_tiny else _PAIRS)
        release_memory(device)
    return failed


def _measure_case(
    case: Case, missing: dict[str, Row], table: Table, device: torch.device, deadline: Deadline, pairs: int
) -> int:
    """Writes the rows that are missing, as far as time allows; returns how many methods have failed."""
    data, failed = Embeddings(case.classes, device), 0
    found: Row | None = None
    pml, error = attempt(partial(build_step, case, PML, data, device))
    if pml is not None:
        found, error = attempt(partial(_measure_alone, pml, case, data, device, pairs))
    if PML in missing:
        table.append({**missing.pop(PML), **(found or {"message": error})})
        failed += bool(error) and not is_finding(error)
    if error:  # the others are measured without it
        pml = None
    for method, key in missing.items():
        if not deadline.allows(_LONGEST):
            break
        found, error = attempt(partial(_measure, case, method, pml, data, device, pairs))
        table.append({**key, **(found or {"message": error})})
        failed += bool(error)
        if error:
            print(f"cost: {method} failed: {case}: {error}")
    return failed


def _key(case: Case, method: str) -> dict[str, Any]:
    values = case._asdict()
    return {name: values[name] for name in _KEY[:5]} | {"dtype": case.precision, "method": method}


def _measure_alone(
    step: Step, case: Case, data: Embeddings, device: torch.device, pairs: int
) -> dict[str, Any]:
    """Returns the figures of steps that are taken alone."""
    batch = draw_batch(case, data)
    for _ in range(WARM_UP):
        step(batch)
    ms = median(milliseconds(lambda: step(batch), device) for _ in range(pairs))
    return {"ms": ms, "pairs": pairs, **_counts(step, batch, device)}


def _measure(
    case: Case, method: str, pml: Step | None, data: Embeddings, device: torch.device, pairs: int
) -> dict[str, Any]:
    """Returns the figures of a method whose steps take turns with PML's, on the same tensors."""
    step = build_step(case, method, data, device)
    if pml is None:
        return _measure_alone(step, case, data, device, pairs)
    batch = draw_batch(case, data)

    def of_pml() -> float:
        nonlocal batch
        batch = draw_batch(case, data)
        return milliseconds(lambda: pml(batch), device)

    found = compare(take_turns(of_pml, lambda: milliseconds(lambda: step(batch), device), pairs))
    return {
        "ms": found["ours_ms"],
        "pml_ms": found["pml_ms"],
        "ratio": found["ratio"],
        "pairs": pairs,
        **_counts(step, batch, device),
    }


def _counts(step: Step, batch: Batch, device: torch.device) -> dict[str, Any]:
    """Returns how many kernels a step launches and how many megabytes it allocates; of a CPU neither."""
    if device.type != "cuda":
        return {"launches": None, "peak_mb": None}
    launches = count_launches(lambda: step(batch), device)
    peak = Peak(device)
    step(batch)
    return {"launches": launches, "peak_mb": peak.megabytes()}
