"""Maps of embeddings that are a scale and a shift per dimension."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Affine(NamedTuple):
    """The map z → scale ∘ z + shift per embedding dimension: ``(d,)`` each, or ``(g, d)`` of groups.

    Example:
        >>> Affine(torch.tensor([2.0]), torch.tensor([1.0])).map(torch.tensor([[3.0]]))
        tensor([[7.]])
    """

    scale: Tensor
    shift: Tensor

    def map(self, rows: Tensor) -> Tensor:
        """Returns the mapped rows ``(n, d)`` in their dtype."""
        return torch.addcmul(self.shift.to(rows), rows, self.scale.to(rows))

    def after(self, first: Affine) -> Affine:
        """Returns the map that applies ``first`` and then this one."""
        return Affine(first.scale * self.scale, torch.addcmul(self.shift, first.shift, self.scale))

    def where_finite(self, other: Affine) -> Affine:
        """Returns this map, and ``other`` in dimensions in which this one holds NaN or inf."""
        is_finite = torch.isfinite(self.scale + self.shift)
        scale, shift = (torch.where(is_finite, x, y) for x, y in zip(self, other, strict=True))
        return Affine(scale, shift)
