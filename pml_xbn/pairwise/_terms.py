"""A loss's terms, as reducers sum them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning import reducers
from torch import Tensor
from torch.nn.functional import threshold

from .._arithmetic import widest
from ._ranges import Ranges
from ._reductions import sum_over_rows, total

# Of which the result follows from a sum and a count.
REDUCERS = (
    reducers.AvgNonZeroReducer,
    reducers.DivisorReducer,
    reducers.MeanReducer,
    reducers.SumReducer,
    reducers.ThresholdReducer,
)


class Elements(NamedTuple):
    """The terms that a loss hands its reducer."""

    # Of anchors (a,), of pairs (a, n), or of listed ones (k,); a 0-d value is already reduced.
    values: Tensor
    counts: Tensor | None = None  # how often each counts, bool or integers; None: once
    divisor: Tensor | None = None  # that of PML's DivisorReducer
    # The derivatives of terms of anchors at the results of reductions that have a gradient, in their order,
    # (a,) each; without them autograd finds these.
    at_results: Sequence[Tensor] | None = None

    def totals(self, reducer: Any) -> tuple[Tensor, Tensor]:
        """Returns values to sum, per anchor or listed pair, and the number that the reducer divides by."""
        values, counts = self.values, self.counts
        low, high = getattr(reducer, "low", None), getattr(reducer, "high", None)
        if counts is None and low is not None and high is None and values.ndim > 0:
            within = threshold(values, low, 0.0)
            return within, within.count_nonzero() if low >= 0 else (values > low).sum()
        for name, is_beyond in (("low", torch.gt), ("high", torch.lt)):
            bound = getattr(reducer, name, None)
            if bound is not None and values.ndim > 0:
                is_within = is_beyond(values, bound)
                counts = is_within if counts is None else counts * is_within
        if counts is None:
            return values, torch.full((), values.numel(), device=values.device)  # torch.tensor would wait
        if values.ndim == 2:
            return sum_over_rows(values, counts), total(counts)
        is_mask = counts.dtype == torch.bool
        # What does not count may be NaN.
        values = values.masked_fill(~counts if is_mask else counts == 0, 0)
        return values if is_mask else values * counts, counts.sum()

    def total_of_anchors(self, reducer: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the sum of terms of anchors, what the reducer divides it by, and 1 for each that counts."""
        values, is_counted = self.values, None
        for name, is_beyond in (("low", torch.gt), ("high", torch.lt)):
            bound = getattr(reducer, name, None)
            if bound is not None:
                is_within = is_beyond(values, bound)
                is_counted = is_within if is_counted is None else is_counted & is_within
        if is_counted is None:
            counted = torch.ones_like(values)
            return values.sum(), counted.sum(), counted
        counted = is_counted.to(values.dtype)
        if getattr(reducer, "high", None) is None:
            return torch.dot(values, counted), counted.sum(), counted
        return torch.where(is_counted, values, 0.0).sum(), counted.sum(), counted  # which may be inf


class TripletTerms(NamedTuple):
    """Of every triplet the positive part of x_p + y_n, where x grows with the distance, and y falls.

    Sorted by distance, the positives whose terms with a negative lie between two bounds are a range too. So a
    sum over triplets follows from how many of them each pair is in.
    """

    x: Tensor  # (a, n), with gradient
    y: Tensor
    triplets: Ranges
    is_positive: bool  # x_p + y_n is never less than 0
    divisor: Tensor | None = None  # that of PML's DivisorReducer

    def totals(self, reducer: Any) -> tuple[Tensor, Tensor]:
        """Returns the sum of every anchor's terms, and how many are counted, as ``Elements.totals`` does."""
        low, high = getattr(reducer, "low", None), getattr(reducer, "high", None)
        low = None if low is None or low < 0 else low  # no term is less than 0
        least = 0.0 if low is None and not self.is_positive else low
        positive, negative = self._between(least, high).num_of_pairs()
        counted = positive if least == low else self._between(None, high).num_of_pairs()[0]
        totals = sum_over_rows(widest(self.x), positive) + sum_over_rows(widest(self.y), negative)
        return totals, counted.sum()

    def _between(self, low: float | None, high: float | None) -> Ranges:
        """Returns the triplets with low < x_p + y_n < high."""
        x, y = self.x.detach(), self.y.detach()
        start, end = self.triplets.start, self.triplets.end
        if low is not None:
            start = torch.maximum(start, self.triplets.first(x, low - y, is_above=True))
        if high is not None:
            end = torch.minimum(end, self.triplets.first(x, high - y)) if high > 0 else end * 0
        return self.triplets._replace(start=start, end=end)
