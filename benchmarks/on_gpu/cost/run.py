"""Measures all cases, each method in turn with PML's class, and writes a row for each."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engine.measuring import milliseconds
from benchmarks.loss_cost.case import Data
from benchmarks.on_gpu.cost.case import PML, Case, cases
from benchmarks.on_gpu.cost.measuring import count_launches, peak_megabytes
from benchmarks.on_gpu.cost.subject import Batch, build_step, draw_batch
from benchmarks.on_gpu.deadline import Deadline
from benchmarks.on_gpu.machine import describe
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
_WARM_UP, _PAIRS, _TINY_PAIRS = 3, 20, 1
_LONGEST = 10.0  # seconds of a method
Step = Callable[[Batch], None]


def run(folder: Path, device: torch.device, deadline: Deadline, is_tiny: bool) -> int:
    """Writes a row for every method of a case that has none yet, as far as time allows.

    Returns how many methods have failed. That PML's class runs out of memory is a finding, and no failure.
    """
    table, machine = Table(folder / FILE, COLUMNS, _KEY), describe(device)
    failed = 0
    for case in cases(is_tiny):
        keys = {method: {**_key(case, method), **machine} for method in (PML, *case.methods)}
        missing = [method for method, key in keys.items() if not table.has(key)]
        if not missing:
            continue
        if not deadline.allows(_LONGEST):
            print("cost: no time is left; the same command goes on")
            break
        pairs = _TINY_PAIRS if is_tiny else _PAIRS
        data = Data(case.classes, device)
        pml, error = _try(lambda: build_step(case, PML, data, device))  # noqa: B023
        if pml is not None:
            found, error = _try(lambda: _measure_one(pml, case, data, device, pairs))  # noqa: B023
        if error:
            pml = None
        if PML in missing:
            table.append({**keys[PML], **({"message": error} if error else found or {})})
            failed += bool(error) and not _is_out_of_memory(error)
        for method in (method for method in missing if method != PML):
            if not deadline.allows(_LONGEST):
                break
            found, error = _try(lambda: _measure(case, method, pml, data, device, pairs))  # noqa: B023
            table.append({**keys[method], **({"message": error} if error else found or {})})
            failed += bool(error)
            if error:
                print(f"cost: {method} failed: {case}: {error}")
        del pml
        _release(device)
    return failed


def _key(case: Case, method: str) -> dict[str, Any]:
    values = case._asdict()
    return {name: values[name] for name in _KEY[:5]} | {"dtype": case.precision, "method": method}


def _measure_one(step: Step, case: Case, data: Data, device: torch.device, pairs: int) -> dict[str, Any]:
    """Returns the figures of steps that are taken alone."""
    batch = draw_batch(case, data)
    for _ in range(_WARM_UP):
        step(batch)
    ms = median(milliseconds(lambda: step(batch), device) for _ in range(pairs))
    return {"ms": ms, "pairs": pairs, **_counts(step, batch, device)}


def _measure(
    case: Case, method: str, pml: Step | None, data: Data, device: torch.device, pairs: int
) -> dict[str, Any]:
    """Returns the figures of a method whose steps take turns with those of PML's class, on the same tensors."""
    step = build_step(case, method, data, device)
    if pml is None:
        return _measure_one(step, case, data, device, pairs)
    batch = draw_batch(case, data)
    for _ in range(_WARM_UP):
        pml(batch)
        step(batch)
    times = []
    for _ in range(pairs):
        batch = draw_batch(case, data)
        times.append(tuple(milliseconds(lambda: take(batch), device) for take in (pml, step)))  # noqa: B023
    return {
        "ms": median(ours for _, ours in times),
        "pml_ms": median(theirs for theirs, _ in times),
        "ratio": median(ours / theirs for theirs, ours in times),
        "pairs": pairs,
        **_counts(step, batch, device),
    }


def _counts(step: Step, batch: Batch, device: torch.device) -> dict[str, Any]:
    return {
        "launches": count_launches(lambda: step(batch), device),
        "peak_mb": peak_megabytes(lambda: step(batch), device),
    }


def _try(act: Callable[[], Any]) -> tuple[Any, str]:
    """Returns what an act returns, and what it raised; the other cases go on after an error."""
    try:
        return act(), ""
    except Exception as error:  # whatever a device may raise
        return None, f"{type(error).__name__}: {error}".replace("\n", " ")[:300]


def _is_out_of_memory(message: str) -> bool:
    return message.startswith(("OutOfMemoryError", "MemoryError")) or "not enough memory" in message


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
