"""What a step costs as the memory grows, in time and memory.

XBN with SupConLoss, rows in half precision; every size has a process of its own.

    python -m benchmarks.cost scale --quick
    python -m benchmarks.cost scale          (4,000,000 rows take about 9 GB and two minutes)

Writes ``scale_<device>.csv`` and ``.md`` to ``benchmarks/results``.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.cost.full_memory import LOSSES, FullMemory
from benchmarks.cost.harness import DEVICE, Peak, in_fresh_process
from benchmarks.cost.machine import describe_fully
from benchmarks.cost.page import write_table
from benchmarks.engine.command_line import existing_device
from benchmarks.engine.results import RESULTS
from benchmarks.engine.trial import at_most
from pml_xbn import XBNWrapper

DTYPE = torch.bfloat16
RANKS = 4  # of which each has a quarter of the anchors
COLUMNS = {
    "rows": "M",
    "step_ms": "step (ms)",
    "quarter_ms": "step (ms), a quarter of the anchors",
    "memory_mb": "rows and labels (MB)",
    "computed_mb": "with matrices, computed (MB)",
    "peak_mb": "peak, measured (MB)",
}


def step_bytes(rows: int, anchors: int) -> int:
    """Returns the bytes that a step with SupConLoss and all pairs takes beside the memory.

    Per pair of anchor and row the matrix and its gradient in float32, and two masks of bool; per row two
    numbers in float32, and its label as it will be.
    """
    return rows * (anchors * (4 + 4 + 1 + 1) + 2 * 4 + 8)


def measure(rows: int, dim: int, batch: int, steps: int, device: torch.device) -> dict[str, Any]:
    """Returns one line of the results."""
    build_memory(batch, dim, batch, device).step()  # what the libraries load at the first step
    peak = Peak(device)
    memory = build_memory(rows, dim, batch, device)
    memory.step()
    times = [memory.step() for _ in range(steps)]
    megabytes = peak.megabytes()
    memory.size = batch // RANKS
    memory.step()
    quarter_times = [memory.step() for _ in range(steps)]
    stored = rows * (dim * DTYPE.itemsize + 8)  # the rows, and their labels in int64
    return {
        "rows": rows,
        "dim": dim,
        "batch": batch,
        "steps": steps,
        "step_ms": round(median(times), 1),
        "quarter_ms": round(median(quarter_times), 1),
        "memory_mb": round(stored / 1e6),
        "computed_mb": round((stored + step_bytes(rows, batch)) / 1e6),
        "peak_mb": round(megabytes),
        **describe_fully(device),
    }


def build_memory(rows: int, dim: int, batch: int, device: torch.device) -> FullMemory:
    loss_fn = XBNWrapper(LOSSES["supcon"](), dim, rows, memory_dtype=DTYPE)
    return FullMemory(loss_fn, loss_fn, rows, batch, device)


def main(
    quick: bool = False,
    rows: tuple[int, ...] = (10_000, 100_000, 1_000_000, 4_000_000),
    dim: int = 512,
    batch: int = 64,
    steps: int = 3,
    device: str = DEVICE,
) -> None:
    """Measures all sizes.

    Args:
        quick: two small sizes.
        rows: in memory.
        dim: of embeddings.
        batch: rows of a batch, a multiple of 16.
        steps: of which the median is taken, after one more.
        device: where they take place.
    """
    place, steps = existing_device(device), at_most(steps)
    sizes = (1_000, 10_000) if quick else rows[: at_most(len(rows))]
    settings = dim, batch, steps, place
    measured = [in_fresh_process(measure, size, *settings) for size in tqdm(sizes, unit="size")]
    text = write_table(
        measured,
        COLUMNS,
        RESULTS / f"scale_{'quick' if quick else place.type}.csv",
        "Cost of a step as the memory grows",
        f"XBN and SupConLoss, rows in {str(DTYPE).removeprefix('torch.')}, d = {dim}, batch {batch}; "
        f"medians of {steps} steps. Written by `benchmarks.cost scale`.",
    )
    print(text)
