"""A full memory that takes steps on random batches, and the losses and miners that are measured on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from pytorch_metric_learning import losses, miners
from torch import Tensor, nn

from benchmarks.cost.embeddings import IMAGES_PER_CLASS
from benchmarks.engine.measuring import milliseconds

NUM_CLASSES = 12_000
LossName = Literal["supcon", "contrastive", "multi-similarity"]
MinerName = Literal["none", "pair-margin"]
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "supcon": lambda: losses.SupConLoss(temperature=0.1),
    "contrastive": losses.ContrastiveLoss,
    "multi-similarity": losses.MultiSimilarityLoss,
    "nca": losses.NCALoss,
}
MINERS: dict[str, Callable[[], nn.Module | None]] = {
    "none": lambda: None,
    "pair-margin": lambda: miners.PairMarginMiner(0.2, 0.8),
}
LOSS_NAMES, MINER_NAMES = get_args(LossName), get_args(MinerName)


class FullMemory:
    """A loss whose memory is filled with ``rows``, and which takes steps on random batches of ``size``.

    Without a seed the batches go on from the rows.
    """

    def __init__(
        self,
        loss_fn: nn.Module,
        memory: Any,
        rows: int,
        size: int,
        device: torch.device,
        seed: int | None = None,
    ) -> None:
        self.loss_fn: Any = loss_fn.to(device)
        self.size, self.dim, self.device = size, memory.embedding_size, device
        self.generator = torch.Generator(device).manual_seed(0)
        for first in range(0, rows, size):  # in parts that take no more than a step does
            part = self._embeddings(min(size, rows - first))
            memory.add_to_memory(part, self._labels(len(part)), len(part))
        if seed is not None:
            self.generator.manual_seed(seed)

    def batch(self) -> tuple[Tensor, Tensor]:
        embeddings, classes = self._embeddings(self.size), self._labels(self.size // IMAGES_PER_CLASS)
        return embeddings.requires_grad_(), classes.repeat_interleave(IMAGES_PER_CLASS)

    def step(self) -> float:
        """Returns milliseconds of one forward and backward."""
        batch = self.batch()
        return milliseconds(lambda: self.loss_fn(*batch).backward(), self.device)

    def _embeddings(self, number: int) -> Tensor:
        """Returns unit vectors 0.8 apart on average: PairMarginMiner(0.2, 0.8) takes about half the pairs."""
        rows = torch.empty(number, self.dim, device=self.device)
        rows.normal_(std=(0.5 / self.dim) ** 0.5, generator=self.generator)
        rows[:, 0] += 1
        rows /= rows.norm(dim=1, keepdim=True)
        return rows

    def _labels(self, number: int) -> Tensor:
        return torch.randint(NUM_CLASSES, (number,), device=self.device, generator=self.generator)
