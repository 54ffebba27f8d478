"""Sums over triplets, of which there may be too many to list them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._dtypes import widest
from ._reductions import OverRows


class Window(NamedTuple):
    """Triplets by how much farther from the anchor the negative is than the positive.

    With every negative go consecutive positives, in the order of their distance.
    """

    mat: Tensor  # (a, n), distances that grow where vectors come apart
    low: float  # the difference is more
    high: float  # the difference is at most that
    positive: Tensor  # (a, n) bool, pairs of which triplets are formed
    negative: Tensor
    start: Tensor  # (a, n), number of the first positive that goes with a negative
    end: Tensor  # (a, n), number of the first behind these

    def lists(self) -> tuple[Tensor, ...]:
        """Returns all triplets as three index tensors."""
        found = []
        for anchor in range(len(self.mat)):
            p, n = (mask[anchor].nonzero().squeeze(1) for mask in (self.positive, self.negative))
            difference = self.mat[anchor, n] - self.mat[anchor, p].unsqueeze(1)
            first, second = ((self.low < difference) & (difference <= self.high)).nonzero(as_tuple=True)
            found.append((torch.full_like(first, anchor), p[first], n[second]))
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    def at(self, anchors: slice) -> Window:
        """Returns the triplets of some anchors."""
        mat, *others = (x[anchors] for x in (self.mat, *self[3:]))
        return Window(mat, self.low, self.high, *others)


class Positives(NamedTuple):
    """The positives of every anchor in the order of their distance, ``(a, k)``, and behind them others."""

    places: Tensor  # their rows
    counts: Tensor  # how often each counts, int64; 0 for others
    num_positives: Tensor  # (a, 1), how many positives there are

    @classmethod
    def of(cls, mat: Tensor, counts: Tensor) -> Positives:
        num_positives = (counts > 0).sum(dim=1, keepdim=True)
        k = max(1, int(num_positives.max()))
        places = mat.masked_fill(counts == 0, torch.inf).topk(k, largest=False).indices
        return cls(places, counts.gather(1, places).long(), num_positives)

    def first(self, keys: Tensor, bounds: Tensor, *, is_above: bool = False) -> Tensor:
        """Returns which is the first positive whose key is at least the bound, or above it, ``(a, n)``.

        Args:
            keys: of all rows, ``(a, n)``; they do not fall with the distance.
            bounds: ``(a, n)``.
        """
        inner = keys.gather(1, self.places)
        is_other = torch.arange(inner.shape[1], device=inner.device) >= self.num_positives
        return torch.searchsorted(inner.masked_fill(is_other, torch.inf), bounds, right=is_above)

    def are_ordered_by(self, keys: Tensor) -> bool:
        """Returns whether the keys ``(a, n)`` do not fall with the distance, but for rounding."""
        inner = keys.gather(1, self.places).masked_fill(self.counts == 0, torch.inf)
        falls = (inner.cummax(dim=1).values - inner).nan_to_num(0.0)
        return bool(falls.max() <= torch.finfo(keys.dtype).eps ** 0.5)

    def num_triplets(self, negative: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """Returns how many triplets each positive and each negative pair is part of, ``(a, n)``, int64.

        Args:
            negative: how often each pair counts, ``(a, n)``.
            start, end: the positives from ``start`` to before ``end`` go with each negative, ``(a, n)``.
        """
        end = torch.minimum(end, self.num_positives)
        start = torch.minimum(start, end)
        before = torch.nn.functional.pad(self.counts.cumsum(dim=1), (1, 0))
        per_negative = (before.gather(1, end) - before.gather(1, start)) * negative
        # By how much the number of negatives changes from one positive to the next.
        changes, weights = torch.zeros_like(before), negative.long()
        changes.scatter_add_(1, start, weights).scatter_add_(1, end, -weights)
        per_positive = changes.cumsum(dim=1)[:, :-1] * self.counts
        return torch.zeros_like(per_negative).scatter_add_(1, self.places, per_positive), per_negative


class TripletTerms(NamedTuple):
    """Of every triplet the positive part of x_p + y_n, where x grows with the distance, and y falls.

    The triplets with terms between two numbers are, for every negative, a run of the positives in the order
    of their distance. How many such triplets each pair is part of is all that the sum of their terms needs.
    """

    mat: Tensor  # (a, n), distances that grow where vectors come apart
    x: Tensor  # (a, n), with gradient
    y: Tensor
    positive: Tensor  # (a, n), how often each pair counts
    negative: Tensor
    window: Window | None  # the triplets that count; None: all positives with all negatives of an anchor
    is_positive: bool = False  # x_p + y_n is never less than zero
    divisor: Tensor | None = None  # that of PML's DivisorReducer
    anchors: Tensor | None = None  # those of the totals; None: all

    def totals(self, reducer: Any, over_rows: OverRows) -> tuple[Tensor, Tensor]:
        """Returns the sum of every anchor's terms, and how many are counted, as ``Elements.totals`` does."""
        low, high = getattr(reducer, "low", None), getattr(reducer, "high", None)
        low = None if low is None or low < 0 else low  # no term is less than 0
        least = 0.0 if low is None and not self.is_positive else low
        positive, negative = self._num_triplets(least, high)
        counted = positive if least == low else self._num_triplets(None, high)[0]
        totals = over_rows.sum(widest(self.x), positive) + over_rows.sum(widest(self.y), negative)
        return totals, counted.sum()

    @torch.no_grad()
    def _num_triplets(self, low: float | None, high: float | None) -> tuple[Tensor, Tensor]:
        """Returns how many triplets with x_p + y_n between these numbers each pair is part of, ``(a, n)``."""
        if self.window is None:
            positives, negative = Positives.of(self.mat, self.positive), self.negative
            end = positives.num_positives.expand_as(self.mat)
            start = torch.zeros_like(end)
        else:
            _, _, _, positive, negative, start, end = self.window
            positives = Positives.of(self.mat, positive)
        if low is not None:
            start = torch.maximum(start, positives.first(self.x, low - self.y, is_above=True))
        if high is not None:
            end = torch.minimum(end, positives.first(self.x, high - self.y)) if high > 0 else end * 0
        return positives.num_triplets(negative, start, end)
