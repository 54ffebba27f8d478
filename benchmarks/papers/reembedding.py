"""Embeds training images once more, for diagnostics, and leaves no trace in the run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.engine.randomness import generator_for, seed_for
from benchmarks.engine.run_diagnostics import embed_without_trace
from benchmarks.papers.augmentation import Transform
from benchmarks.papers.data import TaskData
from benchmarks.papers.keyed_items import Key, KeyedItems, load
from benchmarks.papers.model import EmbeddingModel
from benchmarks.papers.ranks import Ranks
from benchmarks.papers.settings import Settings

_PROBE_SIZE = 64


def seed_of_step(settings: Settings, epoch: int, step: int, rank: int) -> int:
    """Of the generators from which a step draws on a rank, for dropout say."""
    return seed_for(settings.seed, "step", epoch, step, rank)


class Reembedding:
    """What the diagnostics embed; to be asked on all ranks at once, for batch normalization sees all of them.

    Args:
        settings: the run's.
        data: the training images.
        model: the run's, in training mode; not wrapped for many ranks.
        train_transform: as images were stored under.
        test_transform: of the probe.
        ranks: the processes.
        keys_of: (epoch, step, rank) -> keys of a rank's share of that batch.
        steps_per_epoch: to number steps over all epochs.
    """

    def __init__(
        self,
        settings: Settings,
        data: TaskData,
        model: EmbeddingModel,
        train_transform: Transform,
        test_transform: Transform,
        ranks: Ranks,
        keys_of: Callable[[int, int, int], list[Key]],
        steps_per_epoch: int,
    ) -> None:
        self.settings, self.model, self.ranks = settings, model, ranks
        self.keys_of, self.steps_per_epoch = keys_of, steps_per_epoch
        self._items = KeyedItems(data.train, train_transform, settings.seed)
        self._probe_items = KeyedItems(data.train, test_transform, settings.seed)

    @cached_property
    def _probe(self) -> Tensor:
        order = torch.randperm(len(self._probe_items.images), generator=generator_for("probe"))
        keys = [(position,) for position in order[:_PROBE_SIZE].tolist()]
        ((images, _),) = load(self._probe_items, [keys], workers=0)
        return images

    @torch.no_grad()
    def probe(self) -> Tensor:
        """(n, d) of unit length, of always the same images, in evaluation mode."""
        self.model.eval()
        with self.ranks.autocast(self.settings.mixed_precision):
            embeddings = self.model(self._probe.to(self.ranks.device))
        self.model.train()
        return normalize(embeddings)

    def steps(self, steps: list[int]) -> Tensor:
        """(len(steps) · batch size, d) of earlier batches; every rank embeds the share that it had then."""
        settings, ranks = self.settings, self.ranks
        shares = [(*divmod(step, self.steps_per_epoch), ranks.rank) for step in steps]
        batches = load(self._items, [self.keys_of(*share) for share in shares], settings.workers)
        embeddings = []
        with torch.random.fork_rng([ranks.device] if ranks.device.type == "cuda" else []):
            for share, (images, _) in zip(shares, batches, strict=True):
                torch.manual_seed(seed_of_step(settings, *share))
                with ranks.autocast(settings.mixed_precision):
                    mine = embed_without_trace(self.model, images.to(ranks.device))
                embeddings.append(ranks.gather(mine))
        return torch.cat(embeddings)
