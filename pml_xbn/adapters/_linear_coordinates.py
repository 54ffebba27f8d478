"""Coordinates that mix dimensions, for adapters that match covariances."""

from __future__ import annotations

import torch
from torch import Tensor

from .._dtypes import widest
from ._coordinates import Coordinates, Sums
from .affine import Affine
from .linear import Linear


class LinearCoordinates(Coordinates):
    r"""As :class:`Coordinates`, with matrices for scales, ``(2, d, d)``: :math:`\hat z = A u + b`.

    ``sums.second`` is the sum over u uᵀ, ``(2, d, d)``.
    """

    @classmethod
    def of(cls, coordinates: Coordinates) -> Coordinates:
        """The same coordinates, whose sums have to be measured."""
        if isinstance(coordinates, cls):
            return coordinates
        scale, shift, origin, is_as_stored, _ = coordinates
        return cls(torch.diag_embed(scale), shift, origin, is_as_stored, None)

    @classmethod
    def beginning(cls, rows: Tensor, is_whitened: bool, dtype: torch.dtype) -> Coordinates:
        return cls.of(Coordinates.beginning(rows, is_whitened, dtype))

    @staticmethod
    def sums_of(stored: Tensor) -> Sums:
        wide = widest(stored)
        return Sums(wide.sum(dim=-2), wide.mT @ wide)

    @property
    def map(self) -> Linear:
        return Linear(self.scale, self.shift)

    @property
    def size(self) -> Tensor:
        return self.scale.square().sum(dim=-1).sqrt()

    def adapted(self, affine: Affine | Linear) -> Coordinates:
        matrix, shift = Linear.of(affine).after(self.map)
        return self._replace(scale=matrix, shift=shift, is_as_stored=False)

    def bounded(self, dtype: torch.dtype) -> Coordinates:
        return self

    @staticmethod
    def _stored(offsets: Tensor, scale: Tensor) -> Tensor:
        stored: Tensor = torch.linalg.solve_ex(scale, offsets.T)[0].T
        return stored

    def means_and_squares(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        means, scatters = self.means_and_scatters(counts)
        return means, scatters.diagonal(dim1=1, dim2=2).clamp(min=0)

    def means_and_scatters(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Means, and sums of products of deviations from them, ``(2, d, d)``, of the rows as they are now."""
        assert self.sums is not None, "to be measured first"
        first, second = self.sums
        means = first / counts
        scatters = second - first.unsqueeze(2) * means.unsqueeze(1)
        now = (self.scale @ means.unsqueeze(2)).squeeze(2) + self.shift
        return now, self.scale @ scatters @ self.scale.mT
