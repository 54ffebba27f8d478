"""Measures all steps, and writes a row for each."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.cost.embeddings import DIM, Embeddings
from benchmarks.cost.harness import WARM_UP, Peak, count_launches
from benchmarks.engine.measuring import milliseconds, now
from benchmarks.on_gpu.cost.case import Case
from benchmarks.on_gpu.cost.subject import draw_batch
from benchmarks.on_gpu.deadline import Deadline
from benchmarks.on_gpu.rows import columns_of, write_rows
from benchmarks.on_gpu.steps.cells import CAPTURED, Cell, cells
from benchmarks.on_gpu.steps.ways import build_loss, build_step
from benchmarks.on_gpu.table import Table

FILE = "gpu_steps.csv"
# Milliseconds of a step by itself, those for which its call keeps the host while the device is busy, and
# those that it adds to the device's work. Kernels that it launches, those that were compiled for it, numbers
# of the device that the host reads, and the most memory that it takes, in memories of stored rows.
FIGURES = ("ms", "host_ms", "added_ms", "launches", "compiled_kernels", "reads", "peak_memories")
COLUMNS = columns_of(Cell, FIGURES)
KEY = (*Cell._fields, "device", "torch")
_REPEATS, _TINY_REPEATS = 20, 1
_PRODUCTS, _SIDE, _TINY_SIDE = 14, 8_192, 64  # of the made-up network: 20 ms on an H200
_LONGEST = 30.0  # seconds of a cell, most of which compiling takes
Take = Callable[[], None]


def run(folder: Path, device: torch.device, deadline: Deadline, is_tiny: bool) -> int:
    """Writes a row for every step that has none yet; returns how many have failed."""
    network = _made_up_network(_TINY_SIDE if is_tiny else _SIDE, device)
    repeats = _TINY_REPEATS if is_tiny else _REPEATS
    measure = partial(_measure, network=network, device=device, repeats=repeats)
    table = Table(folder / FILE, COLUMNS, KEY)
    return write_rows("steps", table, cells(is_tiny), measure, device, deadline, _LONGEST)


def _measure(cell: Cell, network: Take, device: torch.device, repeats: int) -> dict[str, Any]:
    """Returns the figures of a cell."""
    from torch._inductor import metrics  # which takes a second

    precision = "float32" if cell.dtype == "float32" else f"{cell.dtype} rows"
    case = Case("SupConLoss", cell.miner, cell.rows, max(10, cell.rows // 10), cell.batch, precision, ())
    data = Embeddings(case.classes, device)
    torch.compiler.reset()
    batch = draw_batch(case, data)
    step = build_step(cell, build_loss(cell, case, data, device), batch)
    take, kernels = partial(step, batch), None
    for _ in range(WARM_UP):
        before = metrics.generated_kernel_count
        take()
        kernels = metrics.generated_kernel_count - before or kernels  # a memory's first step may be another
    host, added = _behind(network, take, device, repeats)
    return {
        "ms": median(milliseconds(take, device) for _ in range(repeats)),
        "host_ms": host,
        "added_ms": added,
        "compiled_kernels": kernels,
        **(_of_gpu(cell, take, device) if device.type == "cuda" else {}),
    }


def _made_up_network(side: int, device: torch.device) -> Take:
    """Returns what keeps a device busy: products of matrices, as the layers of a network are."""
    weights = torch.randn(side, side, device=device, dtype=torch.bfloat16)

    def work() -> None:
        for _ in range(_PRODUCTS):
            torch.mm(weights, weights)

    return work


def _behind(network: Take, take: Take, device: torch.device, repeats: int) -> tuple[float, float]:
    """Returns how long a step behind the network keeps the host, and what it adds to the device's time."""
    hosts, added = [], []

    def both() -> None:
        network()
        began = time.perf_counter()
        take()
        hosts.append(1000 * (time.perf_counter() - began))

    for _ in range(repeats):
        now(device)
        alone = milliseconds(network, device)
        added.append(milliseconds(both, device) - alone)
    return median(hosts), median(added)


def _of_gpu(cell: Cell, take: Take, device: torch.device) -> dict[str, Any]:
    """Returns launches, reads and peak of a step; a replay allocates nothing of its own."""
    peak = Peak(device)
    take()
    memories = peak.megabytes() * 1e6 / (cell.rows * DIM * (4 if cell.dtype == "float32" else 2))
    return {
        "launches": count_launches(take, device),
        "reads": count_reads(take),
        "peak_memories": memories if cell.method != CAPTURED else None,
    }


def count_reads(take: Take) -> int:
    """Returns how often the host waits for a number of the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # which warns that it is a prototype
        try:
            take()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("called a synchronizing" in str(warning.message) for warning in told)
