"""What a memory that is spread over the ranks saves, and costs, against one that every rank holds.

XBN with SupConLoss. Ranks start every step together, and its time is the slowest one's; the
memories take turns in processes of their own, so that each one's peak is seen.

    python -m benchmarks.cost shards
    python -m benchmarks.cost shards --quick

Writes ``shard_cost_cpu.csv`` and ``.md`` to ``benchmarks/results``.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import distributed
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from benchmarks.cost.harness import Peak
from benchmarks.cost.machine import describe_fully
from benchmarks.cost.page import write_table
from benchmarks.engine.measuring import milliseconds
from benchmarks.engine.results import RESULTS
from benchmarks.engine.trial import at_most
from pml_xbn import XBNWrapper

DIM, RANKS, ROWS_AT_ONCE = 512, 2, 2_000
CPU = torch.device("cpu")
COLUMNS = {
    "rows": "M",
    "dtype": "dtype",
    "gather_ms": "gather_distributed (ms)",
    "shard_ms": "shard_distributed (ms)",
    "ratio": "ratio",
    "gather_mb": "peak of a rank, gather (MB)",
    "shard_mb": "shard (MB)",
    "peak_ratio": "ratio of peaks",
    "beyond_mb": "shard, beyond its rows and labels (MB)",
}


def measure(memory: str, rows: int, dtype: str, batch: int, steps: int) -> dict[str, float]:
    """Returns median and peak of one memory, as one of the ranks."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    ranks = distributed.get_world_size()
    torch.manual_seed(distributed.get_rank())
    loss_fn = build(memory, batch * ranks, dtype)  # what the libraries load at the first step
    step(loss_fn, batch)
    taken = Peak(CPU)
    loss_fn = build(memory, rows, dtype)
    while loss_fn.num_rows < rows:
        size = min(ROWS_AT_ONCE, rows - loss_fn.num_rows) // ranks
        loss_fn.fill_memory(torch.randn(size, DIM), torch.randint(rows // 10, (size,)))
    times = torch.tensor([step(loss_fn, batch) for _ in range(1 + steps)], dtype=torch.float64)
    peak = torch.tensor(taken.megabytes(), dtype=torch.float64)
    for value in (times, peak):
        distributed.all_reduce(value, distributed.ReduceOp.MAX)
    distributed.barrier()
    distributed.destroy_process_group()
    return {"ms": median(times[1:].tolist()), "mb": peak.item()}


def build(memory: str, rows: int, dtype: str) -> XBNWrapper:
    return XBNWrapper(
        SupConLoss(),
        DIM,
        rows,
        gather_distributed=memory == "gather",
        shard_distributed=memory == "shard",
        memory_dtype=getattr(torch, dtype),
    )


def step(loss_fn: XBNWrapper, batch: int) -> float:
    """Returns the milliseconds of one forward and backward, from when all ranks are there."""
    embeddings = torch.randn(batch, DIM, requires_grad=True)
    labels = torch.randint(loss_fn.memory_size // 10, (batch,))
    distributed.barrier()
    return milliseconds(lambda: loss_fn(embeddings, labels).backward(), CPU)


def run(memory: str, rows: int, dtype: str, batch: int, steps: int) -> dict[str, float]:
    """Measures one memory, in a process for every rank."""
    local: Any = {"run_id": "shards", "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    config = LaunchConfig(1, 1, RANKS, max_restarts=0, **local)
    return elastic_launch(config, measure)(memory, rows, dtype, batch, steps)[0]


def measure_both(rows: int, dtype: str, batch: int, steps: int) -> dict[str, Any]:
    gather, shard = (run(memory, rows, dtype, batch, steps) for memory in ("gather", "shard"))
    stored_mb = rows * (DIM * getattr(torch, dtype).itemsize + torch.int64.itemsize) / RANKS / 1e6
    return {
        "rows": rows,
        "dtype": dtype,
        "dim": DIM,
        "batch": batch * RANKS,
        "ranks": RANKS,
        "steps": steps,
        "gather_ms": round(gather["ms"], 1),
        "shard_ms": round(shard["ms"], 1),
        "ratio": round(shard["ms"] / gather["ms"], 2),
        "gather_mb": round(gather["mb"]),
        "shard_mb": round(shard["mb"]),
        "peak_ratio": round(shard["mb"] / gather["mb"], 2),
        "beyond_mb": round(shard["mb"] - stored_mb),
        **describe_fully(CPU, threads=1),
    }


def main(
    quick: bool = False,
    rows: tuple[int, ...] = (200_000, 2_000_000),
    half_rows: tuple[int, ...] = (200_000, 1_000_000, 4_000_000),
    batch: int = 16,
    steps: int = 5,
) -> None:
    """Measures both memories.

    Args:
        quick: one small size.
        rows: M of memories whose rows are in float32.
        half_rows: M of memories whose rows are in bfloat16.
        batch: rows of a rank's batch.
        steps: of which the median is taken, after one more.
    """
    steps = at_most(steps)
    sizes = [(size, "float32") for size in rows] + [(size, "bfloat16") for size in half_rows]
    sizes = [(10_000, "float32")] if quick else [(at_most(size, 10_000), x) for size, x in sizes]
    sizes = list(dict.fromkeys(sizes))  # those that were cut short are equal
    print(
        write_table(
            [measure_both(size, dtype, batch, steps) for size, dtype in sizes],
            COLUMNS,
            RESULTS / f"shard_cost_{'quick' if quick else 'cpu'}.csv",
            "A memory that is spread over the ranks, and one that every rank holds",
            f"XBN and SupConLoss, d = {DIM}, batch {batch} on each of {RANKS} ranks of one "
            f"thread; medians of {steps} steps. Written by `benchmarks.cost shards`.",
        )
    )
