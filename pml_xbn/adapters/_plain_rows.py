"""Rows of a plain tensor, adapted as a memory's are."""

from __future__ import annotations

import torch
from torch import Tensor

from .._dtypes import widest
from .affine import Affine
from .moments import GroupSums, Moments, moments


class PlainRows:
    """Rows ``(n, d)`` in float32 or float64, and what adapters ask of rows."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def moments(self) -> Moments:
        found = moments(widest(self.values))
        return found.without_rounding(self._least_std(found))

    def adapted(self, affine: Affine) -> PlainRows:
        return PlainRows(self._narrowed(affine.map(widest(self.values))))

    def group_moments(self, slots: Tensor, num_groups: int) -> tuple[Tensor, Moments]:
        wide = widest(self.values)
        centre = wide.mean(dim=0)  # a far mean would swamp the spread
        count, *sums = (x[:num_groups] for x in GroupSums.of(wide - centre, slots, num_groups + 1))
        mean, std = GroupSums(count, *sums).moments()
        found = Moments(mean + centre, std)
        return count, found.without_rounding(self._least_std(found))

    def adapted_in_groups(
        self, slots: Tensor, is_adapted: Tensor, of_group: Affine, of_others: Affine | None
    ) -> PlainRows:
        wide = widest(self.values)
        others = wide if of_others is None else of_others.map(wide)
        is_own = torch.cat([is_adapted, is_adapted.new_zeros(1, 1)])[slots]
        scale, shift = (torch.cat([x, x[:1]])[slots] for x in of_group)
        return PlainRows(self._narrowed(torch.where(is_own, wide * scale + shift, others)))

    def _narrowed(self, wide: Tensor) -> Tensor:
        dtype = self.values.dtype
        return wide.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)

    def _least_std(self, of_rows: Moments) -> Tensor:
        """Returns the spread that rounding of the rows alone makes."""
        return of_rows.mean.abs() * (8 * torch.finfo(self.values.dtype).eps)
