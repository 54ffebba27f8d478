"""What a step of the loss costs on many ranks, against PML's ``DistributedLossWrapper(CrossBatchMemory)``.

Forward, backward and the memory, without a model. Ranks start every step together, and its time is the
slowest one's. Both take steps in turn (A B A B …), so that a machine that slows down slows both; figures
are medians, the ratio's pair by pair. Then each of the exchanges of a step alone.

    torchrun --nproc_per_node=2 -m benchmarks.rank_cost
    torchrun --nproc_per_node=2 -m benchmarks.rank_cost --quick

Writes ``rank_cost_<device>.csv`` and ``.md`` to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import csv
import gc
import itertools
import os
import platform
import time
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import Tensor, distributed, nn
from torch.profiler import profile
from tqdm import tqdm

from benchmarks.step_cost import (
    IMAGES_PER_CLASS,
    LOSSES,
    MINERS,
    NUM_CLASSES,
    RESULTS,
    fill,
    fill_with_embeddings,
)
from pml_xbn import XBNWrapper
from pml_xbn.losses import _ranks as ranks
from pml_xbn.losses._global_batch import Report

DIM, GLOBAL_BATCH = 512, 64
ALL_LOSSES = LOSSES | {"nca": losses.NCALoss}
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


class Subject:
    """A full memory, ours or PML's, the same on all ranks, that takes steps on random batches."""

    def __init__(self, loss: str, miner: str, rows: int, device: torch.device, is_pml: bool) -> None:
        rank = distributed.get_rank()
        self.device, self.size = device, GLOBAL_BATCH // distributed.get_world_size()
        parts = ALL_LOSSES[loss](), DIM, rows, MINERS[miner]()
        self.loss_fn: nn.Module
        if is_pml:
            memory: nn.Module = losses.CrossBatchMemory(*parts)
            self.loss_fn = DistributedLossWrapper(memory)
        else:
            memory = self.loss_fn = XBNWrapper(*parts, gather_distributed=True)
        self.loss_fn.to(device)
        generator = torch.Generator(device).manual_seed(0)
        # Ours gathers what the ranks bring.
        fill(memory, rows if is_pml else rows // distributed.get_world_size(), DIM, generator)
        self.generator = torch.Generator(device).manual_seed(1 + rank)

    def batch(self) -> tuple[Tensor, Tensor]:
        embeddings = torch.empty(self.size, DIM, device=self.device)
        fill_with_embeddings(embeddings, self.generator)
        classes = torch.randint(
            NUM_CLASSES, (self.size // IMAGES_PER_CLASS,), device=self.device, generator=self.generator
        )
        return embeddings.requires_grad_(), classes.repeat_interleave(IMAGES_PER_CLASS)

    def step(self) -> float:
        """Milliseconds of one forward and backward on this rank."""
        batch = self.batch()
        return _time(lambda: self.loss_fn(*batch).backward(), self.device)

    def num_collectives(self) -> int:
        batch = self.batch()
        with profile() as profiled:
            self.loss_fn(*batch).backward()
        return sum(event.count for event in profiled.key_averages() if event.key.startswith("c10d::"))


def _time(call: Callable[[], object], device: torch.device) -> float:
    """Milliseconds, from when all ranks are there."""
    distributed.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began)


def _slowest(times: list[float], device: torch.device) -> list[float]:
    of_ranks = torch.tensor(times, dtype=torch.float64, device=device)
    distributed.all_reduce(of_ranks, distributed.ReduceOp.MAX)
    return list(of_ranks.tolist())


def measure(loss: str, miner: str, rows: int, device: torch.device, pairs: int) -> dict[str, object]:
    """One line of the results."""
    pml, ours = (Subject(loss, miner, rows, device, is_pml) for is_pml in (True, False))
    for _ in range(3):
        pml.step()
        ours.step()
    times = [time for _ in range(pairs) for time in (pml.step(), ours.step())]
    slowest = _slowest(times, device)
    pml_times, ours_times = slowest[::2], slowest[1::2]
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


def measure_exchanges(device: torch.device, times: int) -> dict[str, float]:
    """Milliseconds of each of a step's collectives, alone."""
    size = GLOBAL_BATCH // distributed.get_world_size()
    sizes = [size] * distributed.get_world_size()
    rows, labels = torch.zeros(size, DIM, device=device), torch.zeros(size, dtype=torch.int64, device=device)

    def exchange(numbers: int) -> None:
        with ranks.Exchange(torch.zeros(numbers, dtype=torch.float64)).at_end():
            pass

    calls: dict[str, Callable[[], object]] = {
        "reports of the batches": lambda: exchange(len(Report())),
        "rows": lambda: ranks.gather_rows(rows, sizes),
        "labels": lambda: ranks.gather_rows(labels, sizes),
        "sums, counts and errors": lambda: exchange(4),  # of a loss of one part
    }
    for call in calls.values():
        _time(call, device)
    return {
        name: median(_slowest([_time(call, device) for _ in range(times)], device))
        for name, call in calls.items()
    }


def main() -> None:
    arguments = _parse()
    device = _join()
    cases = CASES[:1] if arguments.quick else CASES
    bar = tqdm([*itertools.product(arguments.rows, cases)], unit="case", disable=distributed.get_rank() > 0)
    results = [measure(loss, miner, rows, device, arguments.pairs) for rows, (loss, miner) in bar]
    exchanges = measure_exchanges(device, 20 * arguments.pairs)
    if distributed.get_rank() == 0:
        table = _table(results, exchanges, device)
        if not arguments.quick:
            _write(results, table, RESULTS / f"rank_cost_{device.type}.csv")
        print(table)
    gc.collect()
    distributed.destroy_process_group()


def _write(results: list[dict[str, object]], table: str, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(results[0]))
        writer.writeheader()
        writer.writerows(results)
    path.with_suffix(".md").write_text(table)


def _table(results: list[dict[str, object]], exchanges: dict[str, float], device: torch.device) -> str:
    is_cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_cuda else f"{platform.machine()} CPU"
    first = results[0]
    of_step = "; ".join(f"{name} {milliseconds:.2f} ms" for name, milliseconds in exchanges.items())
    lines = [
        "# Cost of a step on many ranks, against PML's DistributedLossWrapper(CrossBatchMemory)",
        "",
        f"{first['ranks']} ranks ({distributed.get_backend()}) on one {name}, threads of each: "
        f"{torch.get_num_threads()}, torch {torch.__version__}, pytorch-metric-learning "
        f"{version('pytorch-metric-learning')}, Python {platform.python_version()}; XBN, d = {DIM}, "
        f"{GLOBAL_BATCH} rows on all ranks together; medians of {first['pairs']} interleaved pairs, the "
        "slowest rank's time. Written by `benchmarks.rank_cost`.",
        "",
        "| " + " | ".join(COLUMNS.values()) + " |",
        "|" + "|".join(":--" if name in ("loss", "miner") else "--:" for name in COLUMNS) + "|",
        *("| " + " | ".join(_cell(name, row[name]) for name in COLUMNS) + " |" for row in results),
        "",
        f"The collectives of a step of ours, each alone: {of_step}.",
    ]
    return "\n".join(lines) + "\n"


def _cell(name: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if name == "ratio" else f"{value:.1f}"
    return str(value)


def _join() -> torch.device:
    """Joins the processes that torchrun started, and returns this one's device."""
    timeout = timedelta(minutes=5)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        distributed.init_process_group("nccl", timeout=timeout)
        return device
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=timeout)
    return torch.device("cpu")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="one small case, in seconds; writes nothing")
    add("--rows", type=int, nargs="+", default=[8_192, 60_000])
    add("--pairs", type=int, default=20, help="steps of each, after warm-up (default: 20)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows = [8_192]
    return arguments


if __name__ == "__main__":
    main()
