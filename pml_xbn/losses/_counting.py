"""How many triplets pairs are part of, without a list of the triplets."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Bounds(NamedTuple):
    """Between what the distances of the negatives are that go with each positive.

    Attributes:
        lower: the least, ``(a, n)``; None: there is none.
        upper: those that are too great, from this one on, ``(a, n)``.
    """

    lower: Tensor | None
    upper: Tensor

    def and_within(self, others: Bounds) -> Bounds:
        """Bounds of what is within both."""
        lowers, upper = (self.lower, others.lower), torch.minimum(self.upper, others.upper)
        known = [lower for lower in lowers if lower is not None]
        return Bounds(torch.stack(known).amax(dim=0) if known else None, upper)

    def map(self, function: Callable[[Tensor], Tensor]) -> Bounds:
        """Bounds of what an increasing function makes of the distances."""
        return Bounds(None if self.lower is None else function(self.lower), function(self.upper))


class Order(NamedTuple):
    """Rows of numbers ``(a, n)`` in ascending order; NaN is infinity.

    Attributes:
        values: the numbers.
        places: which column each was in.
    """

    values: Tensor
    places: Tensor

    @classmethod
    def of(cls, mat: Tensor) -> Order:
        mat = mat.masked_fill(mat.isnan(), torch.inf)
        if mat.device.type != "cpu" or mat.dtype != torch.float32:
            return cls(*mat.sort(dim=1))
        # One row of integers at a time is sorted by their digits, several times as fast.
        bits = (mat + 0.0).view(torch.int32)  # without -0
        keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        places = torch.stack([row.sort().indices for row in keys])
        return cls(mat.gather(1, places), places)

    def of_anchors(self, anchors: slice) -> Order:
        return Order(self.values[anchors], self.places[anchors])


def counts_within(bounds: Bounds, order: Order, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """How many triplets within bounds each pair is part of, ``(a, n)``, int32.

    An anchor's bounds are looked up among its rows: O((P + n) log n).

    Args:
        order: of the distances; NaN is within no bounds.
        positive, negative: how often each pair counts, ``(a, n)``, bool or integers.

    Returns:
        Those of the positive and those of the negative pairs.
    """
    places, weights = _first(positive)
    upper = bounds.upper.gather(1, places)
    weights = weights.masked_fill(upper.isnan(), 0)
    ends = torch.searchsorted(order.values, upper)
    num_before = pad(negative.gather(1, order.places).cumsum(dim=1, dtype=torch.int32), (1, 0))
    numbers = num_before.gather(1, ends)
    # By how much the number of positives changes on the way.
    changes = torch.zeros_like(num_before).scatter_add_(1, ends, -weights)
    if bounds.lower is None:
        changes[:, 0] += weights.sum(dim=1)
    else:
        lower = bounds.lower.gather(1, places)
        starts = torch.minimum(torch.searchsorted(order.values, lower), ends)
        numbers -= num_before.gather(1, starts)
        changes.scatter_add_(1, starts, weights)
    of_negatives = changes.cumsum(dim=1, dtype=torch.int32)[:, :-1]
    of_negatives = torch.empty_like(of_negatives).scatter_(1, order.places, of_negatives).mul_(negative)
    return torch.zeros_like(of_negatives).scatter_add_(1, places, numbers.mul_(weights)), of_negatives


def just_above(numbers: Tensor) -> Tensor:
    """The least greater ones: x <= b is x < just_above(b)."""
    return torch.nextafter(numbers, numbers.new_tensor(torch.inf))


def _first(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Of every row of ``(a, n)`` the columns that are not zero, ``(a, k)``, and what they hold, int32.

    Where there are less than k, column 0 is said to hold 0.
    """
    rows, columns = counts.nonzero(as_tuple=True)
    numbers = torch.bincount(rows, minlength=len(counts))
    is_one = torch.arange(int(numbers.max()), device=rows.device) < numbers.unsqueeze(1)
    places = torch.zeros_like(is_one, dtype=torch.int64).masked_scatter_(is_one, columns)
    return places, counts.gather(1, places).int().mul_(is_one)
