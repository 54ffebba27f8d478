"""Embeddings of classes, as random numbers that miners find pairs among."""

from __future__ import annotations

import torch
from torch import Tensor

DIM, IMAGES_PER_CLASS = 512, 4
# Of the parts of a vector that are not common to all: those of a class, those of a row, and in how many
# directions they lie.
_OF_CLASS, _OF_ROW, _DIRECTIONS = 0.57, 0.6, 64


class Embeddings:
    """Unit vectors, those of a class 0.65 apart on average, others 0.9.

    All point the same way on average, as embeddings do, so that miners keep a part of the pairs with their
    default margins: about a tenth of the negative ones that PairMarginMiner does.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(0)
        self._basis = torch.linalg.qr(self._normal(DIM, 1 + _DIRECTIONS))[0].T
        self._classes = _OF_CLASS * self._normal(num_classes, _DIRECTIONS) / _DIRECTIONS**0.5

    def draw(self, num_classes: int, per_class: int) -> tuple[Tensor, Tensor]:
        """Returns embeddings and labels of classes drawn by chance."""
        labels = torch.randint(
            len(self._classes), (num_classes,), device=self._basis.device, generator=self._generator
        ).repeat_interleave(per_class)
        row_parts = _OF_ROW * self._normal(len(labels), _DIRECTIONS) / _DIRECTIONS**0.5
        parts = torch.nn.functional.pad(self._classes[labels] + row_parts, (1, 0), value=1.0)
        return torch.nn.functional.normalize(parts) @ self._basis, labels

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self._generator.device, generator=self._generator)
