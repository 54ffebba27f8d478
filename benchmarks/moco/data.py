"""Two views of every training image, and the images that kNN accuracy is measured on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from benchmarks.engine.randomness import generator_for
from benchmarks.moco.settings import Settings


class Labelled(NamedTuple):
    """Images for evaluation: parts (n, C, H, W) of all of them, each time anew, and (N,) labels."""

    images: Iterable[Tensor]
    labels: Tensor


class MoCoData(Protocol):
    """A data set.

    Attributes:
        summary: says in words what there is.
        identity: differs where the images do.
        train_labels: (N,) labels of the training images, of which training makes no use.
        queries: test images whose class is to be told.
        gallery: labelled images to tell it from; None for all other test images.
    """

    summary: str
    identity: str
    train_labels: Tensor
    queries: Labelled
    gallery: Labelled | None

    def pairs(
        self, batches: Tensor, epoch: int, steps: Sequence[int] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Two views (B, C, H, W) of every batch.

        Args:
            batches: (steps, B) positions of training images.
            epoch: what the augmentation depends on, beside the seed and the place in ``batches``.
            steps: places of the batches that are wanted; None for all.
        """
        ...


def load_data(settings: Settings, root: Path, device: torch.device, workers: int, download: bool) -> MoCoData:
    """Reads a data set.

    Args:
        settings: which one, and how many classes of it.
        root: its folder; Glyphs needs none.
        device: where the images are wanted.
        workers: processes that load CIFAR; 0 for none.
        download: download it into ``root`` unless it is there.

    Raises:
        FileNotFoundError: the images are not in ``root``.
        ImportError: what draws or reads them is not installed.
        ValueError: they do not fill a batch.
    """
    if settings.dataset == "glyphs":
        from benchmarks.moco.glyph_pairs import GlyphPairs

        data: MoCoData = GlyphPairs(settings, device)
    else:
        from benchmarks.moco.cifar_pairs import CIFARPairs

        data = CIFARPairs(settings, root, device, workers, download)
    available = len(data.train_labels)
    if available < settings.batch_size:
        raise ValueError(
            f"batch_size is {settings.batch_size}, but there are {available} training images; pass "
            "smaller batches or more classes"
        )
    return data


def epoch_batches(size: int, batch_size: int, seed: int, epoch: int) -> Tensor:
    """(steps, batch_size) positions of images in random order; those that fill no batch are left out."""
    order = torch.randperm(size, generator=generator_for(seed, epoch, "order"))
    steps = size // batch_size
    return order[: steps * batch_size].view(steps, batch_size)


def first_classes(labels: Tensor, classes: int | None) -> Tensor:
    """(n,) positions of the images of so many classes; None for all."""
    return torch.arange(len(labels)) if classes is None else (labels < classes).nonzero().squeeze(1)
