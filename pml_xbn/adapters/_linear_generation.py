"""Coordinates that mix dimensions, for adapters that match covariances."""

from __future__ import annotations

import torch
from torch import Tensor

from .._dtypes import widest
from ._generation import Generation, Sums
from .affine import Affine
from .linear import Linear


class LinearGeneration(Generation):
    r"""As :class:`Generation`, with a matrix for a scale, ``(d, d)``: :math:`\hat z = A u + b`.

    ``sums.second`` is the sum over u uᵀ, ``(d, d)``.
    """

    @classmethod
    def of(cls, generation: Generation) -> Generation:
        """The same coordinates, whose sums have to be measured."""
        if isinstance(generation, cls):
            return generation
        scale, shift, origin, is_as_stored, _ = generation
        return cls(torch.diag(scale), shift, origin, is_as_stored, None)

    @classmethod
    def beginning(cls, rows: Tensor, is_whitened: bool, dtype: torch.dtype) -> Generation:
        diagonal = Generation.beginning(rows, is_whitened, dtype)
        sums = None if diagonal.sums is None else cls.sums_of(rows[:0])
        return cls.of(diagonal)._replace(sums=sums)

    @staticmethod
    def sums_of(stored: Tensor) -> Sums:
        wide = widest(stored)
        return Sums(wide.sum(dim=0), wide.T @ wide)

    @property
    def map(self) -> Linear:
        return Linear(self.scale, self.shift)

    @property
    def size(self) -> Tensor:
        return self.scale.square().sum(dim=1).sqrt()

    def adapted(self, affine: Affine | Linear) -> Generation:
        matrix, shift = Linear.of(affine).after(self.map)
        return self._replace(scale=matrix, shift=shift, is_as_stored=False)

    def bounded(self, dtype: torch.dtype) -> Generation:
        return self

    def to_store(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        if self.is_as_stored:
            return rows.to(dtype)
        stored: Tensor = torch.linalg.solve_ex(self.scale, (widest(rows) - self.shift).T)[0].T
        return stored.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)

    def column(self, stored: Tensor, dimension: int) -> Tensor:
        return self.read(stored)[:, dimension]

    def of_sums(self, weighted: Tensor, shares: Tensor) -> Tensor:
        return weighted @ self.scale.T + self.shift * shares

    def mean_and_squares(self, count: int) -> tuple[Tensor, Tensor]:
        mean, scatter = self.mean_and_scatter(count)
        return mean, scatter.diagonal().clamp(min=0)

    def mean_and_scatter(self, count: int) -> tuple[Tensor, Tensor]:
        """Mean, and sum of products of deviations from it, ``(d, d)``, of its ``count`` rows."""
        assert self.sums is not None, "to be measured first"
        mean = self.sums.first / count
        scatter = self.sums.second - count * torch.outer(mean, mean)
        return self.scale @ mean + self.shift, self.scale @ scatter @ self.scale.T
