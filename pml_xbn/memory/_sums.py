"""Sums over stored rows, which moments follow from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._dtypes import widest
from .._parts import rows_at_a_time


class Sums(NamedTuple):
    """Sums over stored rows u ``(k, d)`` and over u², ``(d,)`` each, in float64."""

    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, stored: Tensor) -> Sums:
        first = widest(stored.new_zeros(stored.shape[1]))
        second = torch.zeros_like(first)
        for part in stored.split(max(1, rows_at_a_time(stored) // 8)):
            wide = widest(part)
            first += wide.sum(dim=0)
            second += (wide * wide if wide is part else wide.mul_(wide)).sum(dim=0)
        return cls(first, second)

    def exchanged(self, come: Tensor, gone: Tensor) -> Sums:
        """Returns the sums after stored rows ``(k, d)`` have come in the place of others."""
        come = widest(come)
        change = come - gone  # in float64 too, as is the next sum
        return Sums(self.first + change.sum(dim=0), self.second + change.mul_(come + gone).sum(dim=0))
