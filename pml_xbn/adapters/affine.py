"""Maps of embeddings that are a scale and a shift per dimension."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._dtypes import widest


class Affine(NamedTuple):
    """The map z → scale ∘ z + shift per embedding dimension: ``(d,)`` each, or ``(g, d)`` of groups."""

    scale: Tensor
    shift: Tensor

    def map(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """The mapped rows ``(n, d)``, in one pass over them and in their dtype."""
        return torch.addcmul(self.shift.to(rows), rows, self.scale.to(rows), out=out)

    def column(self, rows: Tensor, dimension: int, places: Tensor) -> Tensor:
        """One coordinate of the mapped rows at these places ``(k,)``, in the dtype of the map."""
        chosen = slice(dimension, dimension + 1)
        values = rows[places, chosen].to(self.scale.dtype)
        return Affine(self.scale[chosen], self.shift[chosen]).map(values).squeeze(1)

    def of_sums(self, sums: Tensor, weights: Tensor) -> Tensor:
        """Sums ``(a, d)`` of mapped rows, of those of the rows with these weights ``(a, n)``."""
        return (self.scale * sums).addcmul(self.shift, weights.sum(dim=1, keepdim=True))

    def after(self, first: Affine) -> Affine:
        """The map that takes this one's way where ``first`` has ended."""
        return Affine(first.scale * self.scale, first.shift * self.scale + self.shift)

    def bounded(self, mean: Tensor, std: Tensor, num_rows: int, dtype: torch.dtype) -> Affine:
        """This map in float64, but the identity where it could take a row beyond the range of ``dtype``.

        Args:
            mean, std: of the ``num_rows`` rows that it is for.
        """
        scale, shift, mean, std = (widest(x) for x in (self.scale, self.shift, mean, std))
        # No row is further from the mean than this many standard deviations. The scale has to fit, too.
        reach = mean.abs().add(std.clamp(min=1), alpha=math.sqrt(max(num_rows, 1)))
        farthest = torch.addcmul(shift.abs(), reach, scale.abs())
        fits = farthest < torch.finfo(dtype).max / 4  # not so where the map is NaN or inf
        return Affine(torch.where(fits, scale, 1.0), torch.where(fits, shift, 0.0))
