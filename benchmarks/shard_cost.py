"""What a memory that is spread over the ranks saves, and costs, against one that every rank holds.

XBN with SupConLoss, rows in float32. Ranks start every step together, and its time is the slowest one's; the
memories take turns in processes of their own, so that each one's peak is seen.

    python -m benchmarks.shard_cost
    python -m benchmarks.shard_cost --quick

Writes ``shard_cost_cpu.csv`` and ``.md`` to ``benchmarks/results``.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
import tyro
from pytorch_metric_learning.losses import SupConLoss
from torch import distributed
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from benchmarks.engine.command_line import errors_in_one_line
from benchmarks.engine.cost import environment, write_report
from benchmarks.engine.measuring import milliseconds, peak_rss
from benchmarks.engine.results import RESULTS
from benchmarks.engine.trial import at_most
from pml_xbn import XBNWrapper

DIM, RANKS, ROWS_AT_ONCE = 512, 2, 2_000
COLUMNS = {
    "rows": "M",
    "gather_ms": "gather_distributed (ms)",
    "shard_ms": "shard_distributed (ms)",
    "ratio": "ratio",
    "gather_mb": "peak of a rank, gather (MB)",
    "shard_mb": "shard (MB)",
    "peak_ratio": "ratio of peaks",
}


def measure(memory: str, rows: int, batch: int, steps: int) -> dict[str, float]:
    """Returns median and peak of one memory, as one of the ranks."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    ranks = distributed.get_world_size()
    torch.manual_seed(distributed.get_rank())
    loss_fn = built(memory, batch * ranks)  # what the libraries load at the first step
    step(loss_fn, batch)
    before = peak_rss()
    loss_fn = built(memory, rows)
    while loss_fn.num_rows < rows:
        size = min(ROWS_AT_ONCE, rows - loss_fn.num_rows) // ranks
        loss_fn.fill_memory(torch.randn(size, DIM), torch.randint(rows // 10, (size,)))
    times = torch.tensor([step(loss_fn, batch) for _ in range(1 + steps)], dtype=torch.float64)
    peak = torch.tensor(peak_rss() - before, dtype=torch.float64)
    for value in (times, peak):
        distributed.all_reduce(value, distributed.ReduceOp.MAX)
    distributed.barrier()
    distributed.destroy_process_group()
    return {"ms": median(times[1:].tolist()), "mb": peak.item()}


def built(memory: str, rows: int) -> XBNWrapper:
    return XBNWrapper(
        SupConLoss(), DIM, rows, gather_distributed=memory == "gather", shard_distributed=memory == "shard"
    )


def step(loss_fn: XBNWrapper, batch: int) -> float:
    """Returns the milliseconds of one forward and backward, from when all ranks are there."""
    embeddings = torch.randn(batch, DIM, requires_grad=True)
    labels = torch.randint(loss_fn.memory_size // 10, (batch,))
    distributed.barrier()
    return milliseconds(lambda: loss_fn(embeddings, labels).backward(), torch.device("cpu"))


def run(memory: str, rows: int, batch: int, steps: int) -> dict[str, float]:
    """Measures one memory, in a process for every rank."""
    local: Any = {"run_id": "shards", "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    config = LaunchConfig(1, 1, RANKS, max_restarts=0, **local)
    return elastic_launch(config, measure)(memory, rows, batch, steps)[0]


def line(rows: int, batch: int, steps: int) -> dict[str, Any]:
    gather, shard = (run(memory, rows, batch, steps) for memory in ("gather", "shard"))
    return {
        "rows": rows,
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
    }


def main(
    quick: bool = False,
    rows: tuple[int, ...] = (200_000, 2_000_000),
    batch: int = 16,
    steps: int = 5,
) -> None:
    """Measures both memories.

    Args:
        quick: one small size.
        rows: M.
        batch: rows of a rank's batch.
        steps: of which the median is taken, after one more.
    """
    steps = at_most(steps)
    sizes = (10_000,) if quick else [at_most(size, 10_000) for size in rows[: at_most(len(rows))]]
    print(
        write_report(
            [line(size, batch, steps) for size in sizes],
            COLUMNS,
            RESULTS / f"shard_cost_{'quick' if quick else 'cpu'}.csv",
            "A memory that is spread over the ranks, and one that every rank holds",
            f"XBN and SupConLoss, rows in float32, d = {DIM}, batch {batch} on each of {RANKS} ranks of one "
            f"thread; {environment(torch.device('cpu'))}; medians of {steps} steps. Written by "
            "`benchmarks.shard_cost`.",
        )
    )


if __name__ == "__main__":
    with errors_in_one_line():
        tyro.cli(main, prog="python -m benchmarks.shard_cost")
