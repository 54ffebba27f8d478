"""What a step of the loss costs on many ranks, against PML's ``DistributedLossWrapper(CrossBatchMemory)``.

Forward, backward and the memory, without a model. Ranks start every step together, and its time is the
slowest one's. Both take steps in turn (A B A B …), so that a machine that slows down slows both; figures
are medians, the ratio's pair by pair.

    torchrun --nproc_per_node=2 -m benchmarks.rank_cost
    torchrun --nproc_per_node=2 -m benchmarks.rank_cost --quick

Writes ``rank_cost_<device>.csv`` and ``.md`` to ``benchmarks/results``.
"""

from __future__ import annotations

import itertools
from statistics import median
from typing import Any

import torch
import tyro
from pytorch_metric_learning.losses import CrossBatchMemory
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import distributed
from torch.profiler import profile
from tqdm import tqdm

from benchmarks.engine.command_line import errors_in_one_line
from benchmarks.engine.cost import LOSSES, MINERS, Subject, environment, write_report
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


class RankSubject(Subject):
    """A full memory, ours or PML's, the same on all ranks, that takes steps on random batches."""

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
    pml, ours = (RankSubject(loss, miner, rows, device, is_pml) for is_pml in (True, False))
    for _ in range(3):
        pml.step()
        ours.step()
    times = torch.tensor(
        [(pml.step(), ours.step()) for _ in range(pairs)], dtype=torch.float64, device=device
    )
    distributed.all_reduce(times, distributed.ReduceOp.MAX)  # the slowest rank's
    pml_times, ours_times = times.T.tolist()
    return {
        "loss": loss,
        "miner": miner,
        "rows": rows,
        "dim": DIM,
        "batch": GLOBAL_BATCH,
        "ranks": distributed.get_world_size(),
        "pairs": pairs,
        "pml_ms": median(pml_times),
        "ours_ms": median(ours_times),
        "ratio": median(b / a for a, b in zip(pml_times, ours_times, strict=True)),
        "pml_collectives": pml.num_collectives(),
        "ours_collectives": ours.num_collectives(),
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
        raise SystemExit("error: there is one rank; run torchrun --nproc_per_node=2 -m benchmarks.rank_cost")
    device = processes.device
    if device.type == "cpu":
        torch.set_num_threads(1)
    grid = [*itertools.product((8_192,) if quick else rows, CASES[:1] if quick else CASES)]
    cases, pairs = grid[: at_most(len(grid))], at_most(pairs)
    bar = tqdm(cases, unit="case", disable=not processes.is_first)
    results = [measure(loss, miner, size, device, pairs) for size, (loss, miner) in bar]
    if processes.is_first:
        print(
            write_report(
                results,
                COLUMNS,
                RESULTS / f"rank_cost_{'quick' if quick else device.type}.csv",
                "Cost of a step on many ranks, against PML's DistributedLossWrapper(CrossBatchMemory)",
                f"{processes.world_size} ranks ({distributed.get_backend()}) on one {environment(device)}; "
                f"XBN, d = {DIM}, {GLOBAL_BATCH} rows on all ranks together; medians of {pairs} interleaved "
                "pairs, the slowest rank's time. Written by `benchmarks.rank_cost`.",
            )
        )
    processes.leave()


if __name__ == "__main__":
    with errors_in_one_line():
        tyro.cli(main, prog="python -m benchmarks.rank_cost")
