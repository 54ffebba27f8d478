"""The cost of one loss on one memory, measured in a process of its own, which a step over a limit ends."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning import losses, miners

from benchmarks.cost.embeddings import DIM, IMAGES_PER_CLASS, Embeddings
from benchmarks.cost.harness import Peak, take_turns
from benchmarks.engine.measuring import limit_memory, milliseconds
from pml_xbn import XBNWrapper

BATCH = 64
OURS, PML = "XBNWrapper", "CrossBatchMemory"
MEMORIES = {OURS: XBNWrapper, PML: losses.CrossBatchMemory}
LOSSES: list[str] = losses.CrossBatchMemory.supported_losses()
NUM_CLASSES: dict[str, Callable[[int], int]] = {
    "n/10": lambda rows: rows // 10,
    "10": lambda rows: 10,
    "1000": lambda rows: 1000,
}
USUAL_MINERS = dict.fromkeys(LOSSES, "PairMarginMiner") | {
    "AngularLoss": "AngularMiner",
    "MarginLoss": "DistanceWeightedMiner",
    "MultiSimilarityLoss": "MultiSimilarityMiner",
    "TripletMarginLoss": "TripletMarginMiner",
}
_SHARE_OF_STEPS = 4  # all steps together take as long as the limit of one, over this


class Case(NamedTuple):
    """What a line of the results is of."""

    loss: str
    miner: str
    classes: str
    memory: str
    rows: int


class Subject:
    """A full memory that takes steps, with the case's loss and miner or with SupConLoss alone."""

    def __init__(self, case: Case, rows: int, data: Embeddings, device: torch.device) -> None:
        self._data, self._device = data, device
        options = {"temperature": 0.1} if case.loss == "SupConLoss" else {}
        self._loss = getattr(losses, case.loss)(**options)
        self._miner = None if case.miner == "none" else getattr(miners, case.miner)()
        self._supcon = losses.SupConLoss(temperature=0.1)
        self.memory: Any = MEMORIES[case.memory](self._loss, DIM, rows, self._miner).to(device)
        for first in range(0, rows, BATCH):  # in parts that take no more than a step does
            part, labels = data.draw(min(BATCH, rows - first), 1)
            self.memory.add_to_memory(part, labels, len(part))

    def step(self, batch_size: int = BATCH, *, is_supcon: bool = False) -> float:
        """Returns milliseconds of forward and backward."""
        self.memory.loss, self.memory.miner = (self._supcon, None) if is_supcon else (self._loss, self._miner)
        embeddings, labels = self._data.draw(batch_size // IMAGES_PER_CLASS, IMAGES_PER_CLASS)
        embeddings.requires_grad_()
        return milliseconds(lambda: self.memory(embeddings, labels).backward(), self._device)


def measure(
    case: Case, device: torch.device, repeats: int, time_limit: float, memory_limit: float
) -> Iterator[dict[str, Any]]:
    """Yields the figures after some steps, and after all."""
    data = Embeddings(NUM_CLASSES[case.classes](case.rows), device)
    small = Subject(case, 32, data, device)  # brings in what the libraries load at the first step
    small.step(8)
    small.step(8, is_supcon=True)
    del small
    taken = Peak(device)
    limit_memory(memory_limit, device)

    def step(*, is_supcon: bool = False) -> float:
        signal.setitimer(signal.ITIMER_REAL, time_limit)  # ends this process
        elapsed = subject.step(is_supcon=is_supcon)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return elapsed

    subject = Subject(case, case.rows, data, device)
    elapsed = step()
    if elapsed < 1000:
        elapsed = step()
    yield {"ms": elapsed, "peak_mb": taken.megabytes()}
    of_supcon = partial(step, is_supcon=True)
    of_supcon()
    affordable = int(1000 * time_limit / _SHARE_OF_STEPS / elapsed)
    times = take_turns(step, of_supcon, max(1, min(repeats, affordable)), warm_up=0)
    yield {
        "ms": median(ms for ms, _ in times),
        "supcon_ms": median(ms for _, ms in times),
        "times_supcon": median(ms / supcon for ms, supcon in times),
        "steps": len(times),
    }


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.set_num_threads(job["threads"])
    limits = job["repeats"], job["time_limit_s"], job["memory_limit_gb"]
    for known in measure(Case(**job["case"]), torch.device(job["device"]), *limits):
        print(json.dumps(known), flush=True)


if __name__ == "__main__":
    main()
