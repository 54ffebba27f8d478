"""Han as the runs see it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pml_xbn.datasets import Glyphs, Han

SHIFT = 2  # pixels, of training images to all sides


class Split(NamedTuple):
    """Images (N, 32, 32) uint8, labels (N,) and the checksum of the data set."""

    images: Tensor
    labels: Tensor
    checksum: str


@lru_cache(maxsize=6)
def load_split(root: Path, split: str, classes: int = 0) -> Split:
    """Returns a split of Han, or so many of its classes, which are drawn from all; 0 for all."""
    if split == "glyphs":
        glyphs = Glyphs("train")
        return Split(glyphs.images, glyphs.labels, glyphs.checksum)
    han = Han(split, root)
    if not classes:
        return Split(han.images, han.labels, han.checksum)
    order = torch.randperm(len(han.label_names), generator=torch.Generator().manual_seed(0))
    kept = torch.isin(han.labels, order[:classes])
    return Split(han.images[kept], han.labels[kept].unique(return_inverse=True)[1], han.checksum)


def as_input(images: Tensor) -> Tensor:
    """Returns (B, 1, 32, 32), float32 around 0."""
    return images.float().div_(255).sub_(0.25).div_(0.35).unsqueeze(1)


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Returns the images, each shifted by up to 2 pixels in both directions; what leaves comes in again."""
    size, side = images.shape[:2]
    rows, columns = torch.randint(-SHIFT, SHIFT + 1, (2, size, 1), generator=generator) + torch.arange(side)
    return images[torch.arange(size)[:, None, None], rows[:, :, None] % side, columns[:, None, :] % side]
