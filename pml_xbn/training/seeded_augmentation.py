"""Augmentation that a resumed run repeats, from the middle of an epoch too."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from .._checks import check_integer


class SeededAugmentation(Dataset[Any]):
    """A data set whose random augmentation depends on the batch alone, and not on what was loaded before.

    The images of a batch are loaded with random numbers that are seeded by their indices. So a run that goes
    on in the middle of an epoch augments them as the run that stopped would have, with any number of workers
    (docs/checkpoints.md has the loop). Otherwise each worker's random numbers depend on all that it has
    loaded, and a new ``DataLoader`` gives workers new seeds.

    Seeded are the generators of PyTorch (on the CPU), NumPy and Python that everybody shares, which
    torchvision and timm draw from. Afterwards each is as it was: training draws what it would have drawn.

    Batches have to be drawn anew in each epoch, as by :class:`ClassBatches` or with ``shuffle=True``: a batch
    that comes again is augmented as before. A single image, ``dataset[index]``, is not seeded.

    Args:
        dataset: of images by index, with its augmentation.
        seed: of the augmentation.

    Example:
        >>> class Noise(Dataset[torch.Tensor]):
        ...     def __getitem__(self, index: int) -> torch.Tensor:
        ...         return index + torch.rand(())
        >>> from torch.utils.data import DataLoader
        >>> dataset = SeededAugmentation(Noise())
        >>> first, second = DataLoader(dataset, batch_sampler=[[3, 4], [5, 3]])
        >>> (rest,) = DataLoader(dataset, batch_sampler=[[5, 3]])  # of a run that goes on after one batch
        >>> torch.equal(rest, second), torch.equal(first[0], second[1])
        (True, False)
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        check_integer("seed", seed, at_least=0)
        self.dataset = dataset
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Returns the images of a batch; a ``DataLoader`` calls it."""
        # The hash of integers is always the same.
        with seeded(hash((self.seed, *map(int, indices))) % 2**32):
            if hasattr(self.dataset, "__getitems__"):
                return self.dataset.__getitems__(indices)
            return [self.dataset[index] for index in indices]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the generators that everybody shares, on the CPU, and puts them back afterwards."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too
            np.random.seed(seed)
            random.seed(seed)
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)
