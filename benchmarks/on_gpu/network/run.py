"""Measures all training steps, and writes a row for each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.cost.harness import WARM_UP
from benchmarks.engine.measuring import milliseconds
from benchmarks.on_gpu.deadline import Deadline
from benchmarks.on_gpu.network.cells import Cell, cells
from benchmarks.on_gpu.network.step import build_step
from benchmarks.on_gpu.rows import columns_of, write_rows
from benchmarks.on_gpu.table import Table

FILE = "gpu_network.csv"
# Milliseconds of a step, and the most memory that is allocated from when the step is built.
COLUMNS = columns_of(Cell, ("ms", "peak_mb"))
KEY = (*Cell._fields, "device", "torch")
_REPEATS, _TINY_REPEATS = 10, 1
_SIDE, _TINY_SIDE = 224, 64
_LONGEST = 30.0  # seconds of a cell


def run(folder: Path, device: torch.device, deadline: Deadline, is_tiny: bool) -> int:
    """Writes a row for every training step that has none yet; returns how many have failed."""
    side, repeats = (_TINY_SIDE, _TINY_REPEATS) if is_tiny else (_SIDE, _REPEATS)
    measure = partial(_measure, side=side, device=device, repeats=repeats)
    table = Table(folder / FILE, COLUMNS, KEY)
    return write_rows("network", table, cells(is_tiny), measure, device, deadline, _LONGEST)


def _measure(cell: Cell, side: int, device: torch.device, repeats: int) -> dict[str, Any]:
    torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    take = build_step(cell, side, device)
    for _ in range(WARM_UP):
        take()
    ms = median(milliseconds(take, device) for _ in range(repeats))
    peak = torch.cuda.max_memory_allocated(device) / 1e6 if device.type == "cuda" else None
    return {"ms": ms, "peak_mb": peak}
