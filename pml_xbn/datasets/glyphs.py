"""Glyphs: a retrieval task with thousands of classes and nothing to download."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .glyph_rendering import render_glyphs

_SPLITS = ("train", "test")


class Glyphs(Dataset[tuple[Any, Any]]):
    """Characters of the world's scripts, drawn with the fonts that come with matplotlib.

    Every Unicode character that at least 4 of the 16 text fonts in matplotlib's own font folder
    (the DejaVu Sans, Sans Mono and Serif families, STIX General) can draw is a class, and each
    font gives one 32x32 grey image, centred and shrunk where it would not fit. Left out are
    control, private-use and space characters and combining marks, repeated images within a class
    (many symbols look the same in several fonts), classes with fewer than 3 images after that,
    and homoglyphs: a character that shares an image, pixel for pixel, with an earlier one.

    The classes are split into two disjoint halves, as in Stanford Online Products: pairs of
    neighbouring code points go to train and test in turn, so both halves hold every large script,
    a character's half never depends on the fonts, and a capital stays with its small letter where
    Unicode alternates them. The superclass is the first word of the character's Unicode name: the
    script of a letter (LATIN, GREEK), another word of a symbol (RIGHTWARDS, CIRCLED).

    The images depend on nothing but the version of matplotlib. They are drawn once per process,
    which takes about two seconds.

    Args:
        split: ``"train"`` or ``"test"``.
        transform: applied to the (1, 32, 32) uint8 image on access.
        target_transform: applied to the integer label on access.

    Attributes:
        images: (N, 32, 32) uint8 tensor of all images; ink is 255.
        labels: (N,) int64 tensor, contiguous from 0 within the split.
        superclasses: (number of classes,) int64 tensor, label -> superclass, contiguous from 0;
            `pml_xbn.SuperClassXBN` takes it as it is.
        label_names: label -> Unicode name of the character.
        superclass_names: superclass -> that word.
        paths, evaluation: see :class:`~pml_xbn.datasets.image_dataset.ImageDataset`.
        checksum: identifies the images of both halves together (shortened SHA-256).
        matplotlib_version: the version that drew the images.

    Raises:
        ValueError: ``split`` is neither ``"train"`` nor ``"test"``.
        ImportError: matplotlib 3.10 or newer is not installed.

    Example:
        >>> from pml_xbn.datasets import Glyphs
        >>> dataset = Glyphs("train", transform=lambda image: image / 255)
        >>> image, label = dataset[0]
        >>> image.shape, label, dataset.label_names[label]
        (torch.Size([1, 32, 32]), 0, 'EXCLAMATION MARK')
        >>> dataset.superclass_names[dataset.superclasses[label]]
        'EXCLAMATION'
    """

    paths = None  # what lies in memory has none
    evaluation = ("test",)

    def __init__(
        self,
        split: str = "train",
        transform: Callable[[Tensor], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
    ) -> None:
        if split not in _SPLITS:
            raise ValueError(f"split is {split!r}; choose one of 'train' and 'test'")
        rendering = render_glyphs()
        self.split = split
        self.transform = transform
        self.target_transform = target_transform
        self.checksum = rendering.checksum
        self.matplotlib_version = rendering.matplotlib_version

        code_points = torch.tensor(rendering.code_points, device="cpu")
        in_split = code_points // 2 % 2 == _SPLITS.index(split)
        counts = torch.tensor(rendering.counts, device="cpu")
        self.images: Tensor = rendering.images[in_split.repeat_interleave(counts)]
        classes = torch.arange(int(in_split.sum()), device="cpu")
        self.labels: Tensor = classes.repeat_interleave(counts[in_split])
        self.label_names = [unicodedata.name(chr(c)) for c in code_points[in_split].tolist()]
        words = [name.split()[0] for name in self.label_names]
        self.superclass_names = sorted(set(words))
        numbers = [self.superclass_names.index(x) for x in words]
        self.superclasses: Tensor = torch.tensor(numbers, device="cpu")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, label = self.images[index].unsqueeze(0), int(self.labels[index])
        return (
            self.transform(image) if self.transform else image,
            self.target_transform(label) if self.target_transform else label,
        )
