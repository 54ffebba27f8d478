"""Sums over triplets, of which there may be too many to list them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._dtypes import widest
from ._indices import IndicesTuple
from ._over_rows import OverRows
from ._reducers import Fraction, Rule


class Window(NamedTuple):
    """Triplets by how much farther from the anchor the negative is than the positive.

    Attributes:
        mat: distances that grow where vectors come apart, ``(a, n)``.
        low, high: the difference is more than the one, and at most the other.
        positive, negative: the pairs of which triplets are formed, ``(a, n)`` bool.
        runs: of every negative the first positive it goes with, in the order of their distance, and the
            first behind these, ``(a, n)`` each; None: not looked for.
    """

    mat: Tensor
    low: float
    high: float
    positive: Tensor
    negative: Tensor
    runs: tuple[Tensor, Tensor] | None = None

    def lists(self) -> IndicesTuple:
        """Returns all triplets as three index tensors."""
        found = []
        for anchor in range(len(self.mat)):
            p, n = (mask[anchor].nonzero().squeeze(1) for mask in (self.positive, self.negative))
            difference = self.mat[anchor, n] - self.mat[anchor, p].unsqueeze(1)
            first, second = ((self.low < difference) & (difference <= self.high)).nonzero(as_tuple=True)
            found.append((torch.full_like(first, anchor), p[first], n[second]))
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    def runs_among(self, positives: Positives) -> tuple[Tensor, Tensor]:
        """Returns ``runs``."""
        return positives.first(self.mat, self.mat - self.high), positives.first(self.mat, self.mat - self.low)

    def at(self, anchors: slice) -> Window:
        """Returns the triplets of some anchors."""
        mat, positive, negative = (x[anchors] for x in (self.mat, self.positive, self.negative))
        runs = None if self.runs is None else (self.runs[0][anchors], self.runs[1][anchors])
        return Window(mat, self.low, self.high, positive, negative, runs)


class Positives(NamedTuple):
    """The positives of every anchor in the order of their distance, ``(a, k)``, and behind them others.

    Attributes:
        places: their rows.
        counts: how often each counts, int64; 0 for others.
        numbers: how many positives there are, ``(a, 1)``.
    """

    places: Tensor
    counts: Tensor
    numbers: Tensor

    @classmethod
    def of(cls, mat: Tensor, counts: Tensor) -> Positives:
        numbers = (counts > 0).sum(dim=1, keepdim=True)
        k = max(1, int(numbers.max()))
        places = mat.masked_fill(counts == 0, torch.inf).topk(k, largest=False).indices
        return cls(places, counts.gather(1, places).long(), numbers)

    def first(self, keys: Tensor, bounds: Tensor, *, is_above: bool = False) -> Tensor:
        """Returns which is the first positive whose key is at least the bound, or above it, ``(a, n)``.

        Args:
            keys: of all rows, ``(a, n)``; they do not fall with the distance.
            bounds: ``(a, n)``.
        """
        inner = keys.gather(1, self.places)
        is_other = torch.arange(inner.shape[1], device=inner.device) >= self.numbers
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
        end = torch.minimum(end, self.numbers)
        start = torch.minimum(start, end)
        before = torch.nn.functional.pad(self.counts.cumsum(dim=1), (1, 0))
        of_negatives = (before.gather(1, end) - before.gather(1, start)) * negative
        # By how much the number of negatives changes from one positive to the next.
        changes, weights = torch.zeros_like(before), negative.long()
        changes.scatter_add_(1, start, weights).scatter_add_(1, end, -weights)
        of_positives = changes.cumsum(dim=1)[:, :-1] * self.counts
        return torch.zeros_like(of_negatives).scatter_add_(1, self.places, of_positives), of_negatives


class TripletTerms(NamedTuple):
    """Of every triplet the positive part of x_p + y_n, where x grows with the distance, and y falls.

    The triplets with terms between two numbers are, for every negative, a run of the positives in the order
    of their distance. How many such triplets each pair is part of is all that the sum of their terms needs.

    Attributes:
        mat: distances that grow where vectors come apart, ``(a, n)``.
        x, y: ``(a, n)``, with gradient.
        positive, negative: how often each pair counts, ``(a, n)``.
        window: the triplets that count; None: all positives with all negatives of an anchor.
        is_positive: x_p + y_n is never less than zero.
        divisor: that of PML's DivisorReducer.
    """

    mat: Tensor
    x: Tensor
    y: Tensor
    positive: Tensor
    negative: Tensor
    window: Window | None
    is_positive: bool = False
    divisor: Tensor | None = None

    def fraction(self, rule: Rule, labels: Tensor, over_rows: OverRows) -> Fraction:
        low = None if rule.low is None or rule.low < 0 else rule.low  # no term is less than 0
        least = 0.0 if low is None and not self.is_positive else low
        positive, negative = self._num_triplets(least, rule.high)
        counted = positive if least == low else self._num_triplets(None, rule.high)[0]
        totals = over_rows.sum(widest(self.x), positive) + over_rows.sum(widest(self.y), negative)
        if rule.class_weights is not None:
            totals = totals * rule.class_weights.to(totals)[labels]
        count = counted.sum()
        if rule.divisor == "of loss":
            assert self.divisor is not None, "the loss has no divisor"
            count = self.divisor
        return totals.sum().to(self.x.dtype), count

    @torch.no_grad()
    def _num_triplets(self, low: float | None, high: float | None) -> tuple[Tensor, Tensor]:
        """Returns how many triplets with x_p + y_n between these numbers each pair is part of, ``(a, n)``."""
        if self.window is not None:
            positive, negative = self.window.positive, self.window.negative
        else:
            positive, negative = self.positive, self.negative
        positives = Positives.of(self.mat, positive)
        start, end = torch.zeros_like(self.mat, dtype=torch.int64), positives.numbers.expand_as(self.mat)
        if self.window is not None:
            start, end = self.window.runs or self.window.runs_among(positives)
        if low is not None:
            start = torch.maximum(start, positives.first(self.x, low - self.y, is_above=True))
        if high is not None:
            end = torch.minimum(end, positives.first(self.x, high - self.y)) if high > 0 else end * 0
        return positives.num_triplets(negative, start, end)
