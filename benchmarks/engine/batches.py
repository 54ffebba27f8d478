"""Which images form the batches of an epoch."""

from functools import lru_cache

import numpy as np
import torch
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.utils import common_functions
from torch import Tensor

from benchmarks.engine.randomness import generator_for, seed_for


class EpochBatches:
    """Class-balanced or random batches; those of an epoch depend on the seed and the epoch alone.

    Without ``images_per_class``, 0, an epoch is a random order of all images.
    """

    def __init__(self, labels: Tensor, batch_size: int, images_per_class: int, seed: int) -> None:
        if batch_size < 1 or (images_per_class and batch_size % images_per_class):
            raise ValueError(
                f"batch_size is {batch_size}; it must be a positive multiple of "
                f"{images_per_class}, the images per class"
            )
        classes = len(labels.unique())
        if (images_per_class and classes * images_per_class < batch_size) or len(labels) < batch_size:
            raise ValueError(
                f"{classes} classes with {len(labels)} images do not fill a batch of {batch_size} "
                f"with {images_per_class} images per class; use more classes or a smaller batch"
            )
        self.labels = labels
        self.batch_size = batch_size
        self.images_per_class = images_per_class
        self.seed = seed
        # Every method of a comparison sees the same epochs: draw each of them once.
        self.epoch = lru_cache(self._draw_epoch)

    def __len__(self) -> int:
        return len(self.labels) // self.batch_size

    def _draw_epoch(self, epoch: int) -> Tensor:
        """Returns (steps, batch_size) positions in ``labels``."""
        if not self.images_per_class:
            order = torch.randperm(len(self.labels), generator=generator_for(self.seed, epoch))
            return order[: len(self) * self.batch_size].view(-1, self.batch_size)
        # The sampler draws from a generator that PML shares between all its objects.
        shared = common_functions.NUMPY_RANDOM
        common_functions.NUMPY_RANDOM = np.random.RandomState(seed_for(self.seed, epoch))
        try:
            sampler = MPerClassSampler(self.labels, self.images_per_class, self.batch_size, len(self.labels))
            return torch.tensor(list(sampler)).view(-1, self.batch_size)
        finally:
            common_functions.NUMPY_RANDOM = shared
