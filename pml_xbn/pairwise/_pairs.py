"""Pairs and triplets of anchors and rows, and a loss's terms as reducers sum them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pytorch_metric_learning import reducers
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor
from torch.nn.functional import pad

from .._arithmetic import widest
from ._reductions import sum_over_rows, total

IndicesTuple = tuple[Tensor, ...]

# Of which the result follows from a sum and a count.
REDUCERS = (
    reducers.AvgNonZeroReducer,
    reducers.DivisorReducer,
    reducers.MeanReducer,
    reducers.SumReducer,
    reducers.ThresholdReducer,
)
# Several matrices of that size are to fit into a CPU's cache.
_PAIRS_AT_ONCE = {"cpu": 2**19, "gpu": 2**24}


def anchors_at_once(num_rows: int, device: torch.device) -> int:
    """Returns for how many anchors a loss is computed at once."""
    return max(1, _PAIRS_AT_ONCE["cpu" if device.type == "cpu" else "gpu"] // max(1, num_rows))


def leave_out(mask: Tensor, own_rows: Tensor, first: int | None = None) -> Tensor:
    """Returns the mask ``(a, n)``, in place, without the pairs of anchors and their own rows ``(a,)``.

    Args:
        mask: of pairs.
        own_rows: numbers of rows.
        first: the number of the first of the n rows, where they are a part of all.
    """
    if first is None:
        return mask.scatter_(1, own_rows.unsqueeze(1), False)
    if mask.shape[1] == 0:
        return mask
    columns, is_here = _columns_of(own_rows, first, mask)
    return mask.scatter_(1, columns, mask.gather(1, columns) & ~is_here)


def only(rows: Tensor, first: int, like: Tensor) -> Tensor:
    """Returns a mask like another ``(a, n)`` of every anchor's row ``(a,)``, -1 for none, if it is here."""
    mask = torch.zeros_like(like)
    return mask if like.shape[1] == 0 else mask.scatter_(1, *_columns_of(rows, first, like))


def _columns_of(rows: Tensor, first: int, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the columns of rows in a mask ``(a, n)``, and whether they are among these, both ``(a, 1)``."""
    columns = (rows - first).unsqueeze(1)
    within = columns.clamp(0, mask.shape[1] - 1)
    return within, within == columns


class Pairs(NamedTuple):
    """Pairs of anchors and rows that have been chosen, or triplets."""

    positive: Tensor  # (a, n), bool, or how often each pair is listed or part of a triplet
    negative: Tensor
    labels: Tensor  # (a,), of the anchors
    row_labels: Tensor  # (n,)
    own_rows: Tensor | None  # (a,), rows of the anchors' own copies
    first: int = 0  # the number of the first row
    triplets: Runs | IndicesTuple | None = None  # index tensors, or runs; None: pairs, all combined
    num_pairs: list[int] | None = None  # how many are positive and negative; None: not counted

    def listed(self, lists: IndicesTuple) -> Pairs:
        """Returns the pairs, four index tensors, or triplets, three of them, in the place of these."""
        is_of_triplets = len(lists) == 3
        counts = []
        for places in (lists[:2], lists[::2] if is_of_triplets else lists[2:]):
            count = torch.zeros_like(self.positive, dtype=torch.int32)
            counts.append(count.index_put_(places, count.new_ones(()), accumulate=True))
        positive, negative = counts
        triplets = lists if is_of_triplets else None
        return self._replace(positive=positive, negative=negative, triplets=triplets, num_pairs=None)

    def lists(self) -> IndicesTuple:
        """Returns index tensors as PML's miners do, four of pairs or three of triplets."""
        if isinstance(self.triplets, Runs):
            return self.triplets.lists()
        return self.triplets or (*listed(self.positive), *listed(self.negative))

    def and_user_pairs(self, user_pairs: IndicesTuple) -> Pairs:
        """Returns these pairs, and those that the caller has given besides."""
        if self.triplets is not None:
            return self.listed(appended(self.lists(), user_pairs, self.labels))
        also = self.listed(lmu.convert_to_pairs(user_pairs, self.labels))
        positive, negative = also.positive + self.positive, also.negative + self.negative
        return also._replace(positive=positive, negative=negative)

    def masks(self) -> tuple[Tensor, Tensor]:
        """Returns which pairs are positive and which negative, ``(a, n)`` bool."""
        return self.positive.bool(), self.negative.bool()

    def at(self, anchors: slice) -> Pairs:
        """Returns the pairs of some anchors, not of triplets that are listed."""
        return self._replace(
            positive=self.positive[anchors],
            negative=self.negative[anchors],
            labels=self.labels[anchors],
            own_rows=None if self.own_rows is None else self.own_rows[anchors],
            triplets=None if self.triplets is None else Runs(*(x[anchors] for x in self.triplets)),
        )


def similarities(distance: Any, mat: Tensor) -> Tensor:
    """Returns what the distance measured, with a sign by which it grows where vectors become alike."""
    return mat if distance.is_inverted else -mat


def mapped(user_pairs: IndicesTuple, rows: Tensor) -> IndicesTuple:
    """Returns pairs or triplets whose positives and negatives number ``rows``, not what ``rows`` number."""
    is_anchor = (True, False, False) if len(user_pairs) == 3 else (True, False, True, False)
    indices = (x.to(rows.device, torch.int64) for x in user_pairs)
    return tuple(x if anchor else rows[x] for x, anchor in zip(indices, is_anchor, strict=True))


def appended(indices: IndicesTuple, user_pairs: IndicesTuple, labels: Tensor) -> IndicesTuple:
    """Returns ``indices`` and behind them ``user_pairs`` of the batch, as triplets if the first are some."""
    convert = lmu.convert_to_triplets if len(indices) == 3 else lmu.convert_to_pairs
    user_pairs = convert(user_pairs, labels)
    return tuple(torch.cat([a, b.to(a.device)]) for a, b in zip(indices, user_pairs, strict=True))


def drop_own_rows(indices: IndicesTuple, own_rows: Tensor) -> IndicesTuple:
    """Returns the pairs or triplets without those of an anchor and its own row."""
    left: list[Tensor] = []
    for anchors, *rows in [indices] if len(indices) == 3 else [indices[:2], indices[2:]]:
        keep = (torch.stack(rows) != own_rows[anchors]).all(dim=0)
        left += [x[keep] for x in (anchors, *rows)]
    return tuple(left)


class Runs(NamedTuple):
    """Triplets of which consecutive positives, in the order of their distance, go with every negative."""

    places: Tensor  # (a, k), rows of the anchor's positives in that order, and behind them others
    counts: Tensor  # (a, k), how often each counts, int32; 0 for others
    negative: Tensor  # (a, n), how often each pair counts
    start: Tensor  # (a, n), number of the first positive that goes with a negative
    end: Tensor  # (a, n), number of the first behind these

    @classmethod
    def all(cls, mat: Tensor, positive: Tensor, negative: Tensor) -> Runs:
        """Returns all positives with all negatives of each anchor, by distances that grow as vectors part."""
        num_positives = (positive > 0).sum(dim=1, keepdim=True)
        k = min(mat.shape[1], max(1, int(num_positives.max())))
        places = torch.where(positive > 0, mat, torch.inf).topk(k, largest=False).indices
        end = num_positives.expand_as(mat)
        return cls(places, positive.gather(1, places).int(), negative, torch.zeros_like(end), end)

    def first(self, keys: Tensor, bounds: Tensor, *, is_above: bool = False) -> Tensor:
        """Returns the first positives whose keys, which grow with the distance, reach or exceed bounds."""
        return torch.searchsorted(self._of_positives(keys), bounds, right=is_above)

    def are_ordered_by(self, keys: Tensor) -> bool:
        """Returns whether the keys ``(a, n)`` do not fall with the distance, but for rounding."""
        keys = self._of_positives(keys)
        falls = (keys.cummax(dim=1).values - keys).nan_to_num(0.0)
        return bool(falls.max() <= torch.finfo(keys.dtype).eps ** 0.5)

    def _of_positives(self, keys: Tensor) -> Tensor:
        return keys.gather(1, self.places).masked_fill(self.counts == 0, torch.inf)

    def num_of_pairs(self) -> tuple[Tensor, Tensor]:
        """Returns how many triplets each positive and each negative pair is part of, ``(a, n)``, int32."""
        start, weights = torch.minimum(self.start, self.end), self.negative.int()
        before = pad(self.counts.cumsum(dim=1, dtype=torch.int32), (1, 0))
        per_negative = (before.gather(1, self.end) - before.gather(1, start)).mul_(weights)
        # By how much the number of negatives changes from one positive to the next.
        changes = torch.zeros_like(before)
        changes.scatter_add_(1, start, weights).scatter_add_(1, self.end, -weights)
        per_positive = changes.cumsum(dim=1, dtype=torch.int32)[:, :-1] * self.counts
        return torch.zeros_like(per_negative).scatter_add_(1, self.places, per_positive), per_negative

    def lists(self) -> tuple[Tensor, ...]:
        """Returns the triplets as three index tensors."""
        found = []
        for number in range(self.places.shape[1]):
            is_in = (self.start <= number) & (number < self.end)
            anchors, negatives = listed(self.counts[:, number, None] * self.negative * is_in)
            found.append((anchors, self.places[anchors, number], negatives))
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def listed(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Returns anchors and rows of pairs, each as often as it counts."""
    places = counts.nonzero()
    if counts.dtype != torch.bool:
        places = places.repeat_interleave(counts[counts > 0], dim=0)
    anchors, rows = places.unbind(dim=1)
    return anchors, rows


class Elements(NamedTuple):
    """The terms that a loss hands its reducer."""

    # Of anchors (a,), of pairs (a, n), or of listed ones (k,); without dimensions a result, whatever reduces.
    values: Tensor
    counts: Tensor | None = None  # how often each counts, bool or integers; None: once
    divisor: Tensor | None = None  # that of PML's DivisorReducer

    def totals(self, reducer: Any) -> tuple[Tensor, Tensor]:
        """Returns what the reducer sums, with a number per anchor or listed one, and what divides the sum."""
        values, counts = self.values, self.counts
        for name, is_beyond in (("low", torch.gt), ("high", torch.lt)):
            bound = getattr(reducer, name, None)
            if bound is not None and values.ndim > 0:
                is_within = is_beyond(values, bound)
                counts = is_within if counts is None else counts * is_within
        if counts is None:
            return values, torch.full((), values.numel(), device=values.device)  # torch.tensor would wait
        is_mask = counts.dtype == torch.bool
        # What does not count may be NaN.
        values = values.masked_fill(~counts if is_mask else counts == 0, 0)
        if values.ndim == 2:
            return sum_over_rows(values, counts), total(counts)
        return values if is_mask else values * counts, counts.sum()


class TripletTerms(NamedTuple):
    """Of every triplet the positive part of x_p + y_n, where x grows with the distance, and y falls.

    Triplets with terms between two numbers are runs too, and a sum needs the number of them of each pair.
    """

    x: Tensor  # (a, n), with gradient
    y: Tensor
    triplets: Runs
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

    @torch.no_grad()
    def _between(self, low: float | None, high: float | None) -> Runs:
        """Returns the triplets with low < x_p + y_n < high."""
        start, end = self.triplets.start, self.triplets.end
        if low is not None:
            start = torch.maximum(start, self.triplets.first(self.x, low - self.y, is_above=True))
        if high is not None:
            end = torch.minimum(end, self.triplets.first(self.x, high - self.y)) if high > 0 else end * 0
        return self.triplets._replace(start=start, end=end)
