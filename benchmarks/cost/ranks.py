"""What a step of the loss costs on many ranks, against PML's ``DistributedLossWrapper(CrossBatchMemory)``.

Forward, backward and the memory, without a model. Ranks start every step together, and its time is the
slowest one's. Both take steps in turn (A B A B …), so that a machine that slows down slows both; figures
are medians, the ratio's pair by pair.

    torchrun --nproc_per_node=2 -m benchmarks.cost ranks
    torchrun --nproc_per_node=2 -m benchmarks.cost ranks --quick

Writes ``rank_cost_<device>.csv`` and ``.md`` to ``benchmarks/results``.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import distributed
from torch.profiler import profile
from tqdm import tqdm

from benchmarks.cost.full_memory import LOSSES, MINERS, FullMemory
from benchmarks.cost.harness import compare, take_turns
from benchmarks.cost.machine import describe_fully
from benchmarks.cost.page import write_table
from benchmarks.engine.measuring import milliseconds
from benchmarks.engine.ranks import Ranks
from benchmarks.engine.results import RESULTS
from benchmarks.engine.trial import at_most
from pml_xbn import XBNWrapper

DIM, GLOBAL_BATCH = 512, 64
# NCALoss is the one that every rank computes for the anchors of all.
CASES = [*itertools.product(["supcon", "contrastive"], ["none", "pair-margin"]), ("nca", "none")]
COLUMNS = {
    "loss": "loss",
    "miner": "miner",
    "rows": "M",
    "pml_ms": "PML (ms)",
    "ours_ms": "ours (ms)",
    "ratio": "ours / PML",
    "pml_collectives": "PML's collectives",
    "ours_collectives": "our collectives",
}


class MemoryOfRanks(FullMemory):
    """A full memory, ours or PML's, which is the same on all ranks."""

    def __init__(self, loss: str, miner: str, rows: int, device: torch.device, is_pml: bool) -> None:
        world_size = distributed.get_world_size()
        parts = LOSSES[loss](), DIM, rows, MINERS[miner]()
        memory: Any = CrossBatchMemory(*parts) if is_pml else XBNWrapper(*parts, gather_distributed=True)
        super().__init__(
            DistributedLossWrapper(memory) if is_pml else memory,
            memory,
            rows if is_pml else rows // world_size,  # ours gathers what the ranks bring
            GLOBAL_BATCH // world_size,
            device,
            seed=1 + distributed.get_rank(),
        )

    def step(self) -> float:
        """Returns milliseconds of one forward and backward on this rank, from when all ranks are there."""
        batch = self.batch()
        distributed.barrier()
        return milliseconds(lambda: self.loss_fn(*batch).backward(), self.device)

    def num_collectives(self) -> int:
        batch = self.batch()
        with profile() as profiled:
            self.loss_fn(*batch).backward()
        return sum(event.count for event in profiled.key_averages() if event.key.startswith("c10d::"))


def measure(loss: str, miner: str, rows: int, device: torch.device, pairs: int) -> dict[str, Any]:
    """Returns one line of the results."""
    pml, ours = (MemoryOfRanks(loss, miner, rows, device, is_pml) for is_pml in (True, False))
    times = torch.tensor(take_turns(pml.step, ours.step, pairs), dtype=torch.float64, device=device)
    distributed.all_reduce(times, distributed.ReduceOp.MAX)  # the slowest rank's
    return {
        "loss": loss,
        "miner": miner,
        "rows": rows,
        "dim": DIM,
        "batch": GLOBAL_BATCH,
        "ranks": distributed.get_world_size(),
        "pairs": pairs,
        **compare(times.tolist()),
        "pml_collectives": pml.num_collectives(),
        "ours_collectives": ours.num_collectives(),
        **describe_fully(device),
    }


def main(quick: bool = False, rows: tuple[int, ...] = (8_192, 60_000), pairs: int = 20) -> None:
    """Measures all cases.

    Args:
        quick: one small case, in seconds.
        rows: in memory.
        pairs: steps of each, after warm-up.
    """
    processes = Ranks(cpu=False)
    if processes.world_size == 1:
        raise SystemExit("error: there is one rank; run torchrun --nproc_per_node=2 -m benchmarks.cost ranks")
    device = processes.device
    if device.type == "cpu":
        torch.set_num_threads(1)
    grid = [*itertools.product((8_192,) if quick else rows, CASES[:1] if quick else CASES)]
    cases, pairs = grid[: at_most(len(grid))], at_most(pairs)
    bar = tqdm(cases, unit="case", disable=not processes.is_first)
    results = [measure(loss, miner, size, device, pairs) for size, (loss, miner) in bar]
    if processes.is_first:
        print(
            write_table(
                results,
                COLUMNS,
                RESULTS / f"rank_cost_{'quick' if quick else device.type}.csv",
                "Cost of a step on many ranks, against PML's DistributedLossWrapper(CrossBatchMemory)",
                f"{processes.world_size} ranks ({distributed.get_backend()}) on one machine; "
                f"XBN, d = {DIM}, {GLOBAL_BATCH} rows on all ranks together; medians of {pairs} interleaved "
                "pairs, the slowest rank's time. Written by `benchmarks.cost ranks`.",
            )
        )
    processes.leave()
