"""Maps of embeddings that mix dimensions."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._dtypes import widest
from .affine import Affine


class Linear(NamedTuple):
    """The map z → A z + b, of a matrix ``(d, d)`` and a shift ``(d,)``; a sibling of :class:`Affine`."""

    matrix: Tensor
    shift: Tensor

    @classmethod
    def of(cls, affine: Affine | Linear) -> Linear:
        """The same map, with a matrix."""
        return affine if isinstance(affine, Linear) else cls(torch.diag(affine.scale), affine.shift)

    def map(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """The mapped rows ``(..., d)``, in their dtype."""
        mapped = torch.matmul(rows, self.matrix.to(rows).T, out=out)
        return mapped + self.shift.to(rows) if out is None else mapped.add_(self.shift.to(rows))

    def column(self, rows: Tensor, dimension: int, places: Tensor) -> Tensor:
        """One coordinate of the mapped rows at these places ``(k,)``, in the dtype of the map."""
        return self.map(rows[places].to(self.shift.dtype))[:, dimension]

    def of_sums(self, sums: Tensor, weights: Tensor) -> Tensor:
        """Sums ``(a, d)`` of mapped rows, of those of the rows with these weights ``(a, n)``."""
        return sums @ self.matrix.T + self.shift * weights.sum(dim=1, keepdim=True)

    def after(self, first: Linear) -> Linear:
        """The map that takes this one's way where ``first`` has ended."""
        return Linear(self.matrix @ first.matrix, first.shift @ self.matrix.mT + self.shift)

    def bounded(self, mean: Tensor, std: Tensor, num_rows: int, dtype: torch.dtype) -> Linear:
        """This map in float64, but the identity if it could take a row beyond the range of ``dtype``.

        Args:
            mean, std: of the ``num_rows`` rows that it is for.
        """
        matrix, shift, mean, std = (widest(x) for x in (self.matrix, self.shift, mean, std))
        reach = math.sqrt(max(num_rows, 1))
        farthest = matrix.abs() @ (mean.abs() + reach * std.clamp(min=1)) + shift.abs()
        fits = (farthest < torch.finfo(dtype).max / 4).all()  # not so where the map is NaN or inf
        identity = torch.eye(len(shift), dtype=matrix.dtype, device=matrix.device)
        return Linear(torch.where(fits, matrix, identity), torch.where(fits, shift, 0.0))
