"""What a step adds to the time of a device that a network keeps busy.

A step by itself shows how long the host takes to launch its kernels. In training the host launches them while
the device still computes the network, so that only the kernels count, unless the step makes the host wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.cost.embeddings import Embeddings
from benchmarks.cost.harness import WARM_UP, kernel_milliseconds
from benchmarks.cost.machine import describe
from benchmarks.engine.measuring import milliseconds, release_memory
from benchmarks.on_gpu.attempt import attempt
from benchmarks.on_gpu.cost.case import PML, Case, cases_behind
from benchmarks.on_gpu.cost.subject import build_step, draw_batch
from benchmarks.on_gpu.deadline import Deadline
from benchmarks.on_gpu.table import Table

FILE = "gpu_behind.csv"
_KEY = ("rows", "batch", "method", "nonfinite", "device", "torch")
COLUMNS = (*_KEY[:4], "alone_ms", "busy_ms", "added_ms", "kernel_ms", "pairs", "message", *_KEY[4:], "driver")
_PAIRS, _TINY_PAIRS = 10, 1
_PRODUCTS, _SIDE, _TINY_SIDE = 14, 8_192, 64  # of the network that is made up: 20 ms on an H200
_LONGEST = 5.0  # seconds of a method


def run(folder: Path, device: torch.device, deadline: Deadline, is_tiny: bool) -> int:
    """Writes a row for every method that has none yet, as far as time allows.

    Returns how many methods have failed.
    """
    table, machine = Table(folder / FILE, COLUMNS, _KEY), describe(device)
    network = _made_up_network(_TINY_SIDE if is_tiny else _SIDE, device)
    pairs = _TINY_PAIRS if is_tiny else _PAIRS
    failed = 0
    for case, method, nonfinite in _methods(is_tiny):
        row = {"rows": case.rows, "batch": case.batch, "method": method, "nonfinite": nonfinite} | machine
        if table.has(row):
            continue
        if not deadline.allows(_LONGEST):
            print("cost behind a busy device: no time is left; the same command goes on")
            break
        found, error = attempt(partial(_measure, case, method, nonfinite, network, device, pairs))
        table.append(row | (found or {"message": error}))
        failed += bool(error)
        if error:
            print(f"cost behind a busy device: {method} failed: {case}: {error}")
        release_memory(device)
    return failed


def _methods(is_tiny: bool) -> Iterator[tuple[Case, str, str]]:
    """Yields a case, a method and its ``nonfinite``, which PML's class has not."""
    for case in cases_behind(is_tiny):
        for method in case.methods:
            for nonfinite in ("",) if method == PML else ("raise", "ignore"):
                yield case, method, nonfinite


def _made_up_network(side: int, device: torch.device) -> Callable[[], None]:
    """Returns what keeps a device busy: products of matrices, as the layers of a network are."""
    weights = torch.randn(side, side, device=device, dtype=torch.bfloat16)

    def work() -> None:
        for _ in range(_PRODUCTS):
            torch.mm(weights, weights)

    return work


def _measure(
    case: Case, method: str, nonfinite: str, network: Callable[[], None], device: torch.device, pairs: int
) -> dict[str, Any]:
    """Returns the milliseconds of a step alone, of the network, of what it adds to that, of its kernels."""
    data = Embeddings(case.classes, device)
    step = build_step(case, method, data, device, nonfinite or "raise")
    take = partial(step, draw_batch(case, data))

    def both() -> None:
        network()
        take()

    for _ in range(WARM_UP):
        both()
    times = [[milliseconds(call, device) for call in (take, network, both)] for _ in range(pairs)]
    alone, busy, together = zip(*times, strict=True)
    return {
        "alone_ms": median(alone),
        "busy_ms": median(busy),
        "added_ms": median(whole - part for whole, part in zip(together, busy, strict=True)),
        "kernel_ms": kernel_milliseconds(take, device) if device.type == "cuda" else None,
        "pairs": pairs,
    }
