"""How many triplets pairs are part of, without a list of the triplets."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


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


def counts_within(bounds: Bounds, mat: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """How many triplets within bounds each pair is part of, ``(a, n)``, int32.

    An anchor's bounds are sorted, and its negatives looked up among them: O((P + N) log P).

    Args:
        mat: the distances, ``(a, n)``; NaN is within no bounds.
        positive, negative: how often each pair counts, ``(a, n)``, bool or integers.

    Returns:
        Those of the positive and those of the negative pairs.
    """
    places, weights = _first(positive)
    ends = starts = bounds.upper.gather(1, places)
    if bounds.lower is not None:
        starts = bounds.lower.gather(1, places)
        ends = torch.maximum(starts, ends)
    weights = weights.masked_fill(ends.isnan(), 0)
    if bounds.lower is not None:
        ends = torch.cat([ends, starts], dim=1)
        weights, places = torch.cat([weights, -weights], dim=1), places.repeat(1, 2)
    ends, order = ends.masked_fill(ends.isnan(), torch.inf).sort(dim=1)
    passed = torch.searchsorted(ends, mat, right=True)  # a negative is before the ends from there on
    from_start = torch.nn.functional.pad(weights.gather(1, order).cumsum(dim=1), (1, 0))
    of_negatives = (from_start[:, -1:] - from_start).int().gather(1, passed).mul_(negative)
    num_before = torch.zeros_like(from_start, dtype=torch.int32).scatter_add_(1, passed, negative.int())
    num_before = torch.zeros_like(weights).scatter_(1, order, num_before.cumsum(dim=1)[:, :-1]).mul_(weights)
    return torch.zeros_like(of_negatives).scatter_add_(1, places, num_before.int()), of_negatives


def just_above(numbers: Tensor) -> Tensor:
    """The least greater ones: x <= b is x < just_above(b)."""
    return torch.nextafter(numbers, numbers.new_tensor(torch.inf))


def _first(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Of every row of ``(a, n)`` the columns that are not zero, and what they hold, ``(a, k)``, int64.

    Where there are less than k, column 0 is said to hold 0.
    """
    rows, columns = counts.nonzero(as_tuple=True)
    numbers = (counts > 0).sum(dim=1)
    slots = torch.arange(len(rows), device=rows.device) - (numbers.cumsum(dim=0) - numbers)[rows]
    places = rows.new_zeros(len(counts), int(numbers.max()))
    weights = places.index_put((rows, slots), counts[rows, columns].long())
    return places.index_put_((rows, slots), columns), weights
