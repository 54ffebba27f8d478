"""Images whose augmentation depends on a key alone, whoever loads them and in whatever order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.engine.randomness import seed_for
from pml_xbn.training.seeded_augmentation import seeded

Key = tuple[int, ...]
Transform = Callable[[Any], Any]


@dataclass(frozen=True)
class Images:
    """Images with labels: which ``positions`` (N,) of the items, their labels (N,), label -> superclass."""

    items: Any
    positions: Tensor
    labels: Tensor
    superclasses: Tensor | None = None

    def __len__(self) -> int:
        return len(self.positions)


def class_subset(dataset: Any, classes: int | None) -> Images:
    """Returns the images of so many classes of a data set; None for all."""
    labels: Tensor = dataset.labels
    positions = torch.arange(len(labels)) if classes is None else (labels < classes).nonzero().squeeze(1)
    return Images(dataset, positions, labels[positions], dataset.superclasses)


class KeyedItems(Dataset[tuple[Any, int]]):
    """Items under a transform whose random numbers are seeded from the item's key.

    An index is a key whose last number is the position in ``images``, such as (epoch, step, place in the
    batch, position). That makes a resumed run see what the interrupted one would have seen.
    """

    def __init__(self, images: Images, transform: Transform, seed: int) -> None:
        self.images, self.transform, self.seed = images, transform, seed

    def __getitem__(self, key: Key) -> tuple[Any, int]:
        image, label = self.images.items[int(self.images.positions[key[-1]])]
        with seeded(seed_for(self.seed, "augmentation", *key)):
            return self.transform(image), label


class Loader:
    """Loads batches of the given keys, in order, by workers that live on from one call to the next.

    Each call ends the batches of the one before.
    """

    def __init__(self, items: KeyedItems, workers: int) -> None:
        self._batches: list[Sequence[Key]] = []
        self._loader: DataLoader[Any] = DataLoader(
            items,
            batch_sampler=self._batches,  # type: ignore[arg-type]
            num_workers=workers,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=workers > 0,
            # Its own draw would change the state of the generator that steps depend on.
            generator=torch.Generator(),
            worker_init_fn=_outlive_sigterm,
        )

    def __call__(self, batches: Sequence[Sequence[Key]]) -> DataLoader[Any]:
        self._batches[:] = batches
        return self._loader


def _outlive_sigterm(worker: int) -> None:
    """torchrun and schedulers send it to workers too, whose death would stop the step and its checkpoint."""
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(20))


def load(items: KeyedItems, batches: Sequence[Sequence[Key]], workers: int) -> DataLoader[Any]:
    """Returns the batches of the given keys, in order, by workers that end with them."""
    return Loader(items, workers)(batches)
