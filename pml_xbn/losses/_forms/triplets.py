"""Terms of triplets, of which there are too many to list them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import relu, softplus

from ..._dtypes import widest
from .._counting import Bounds, Order, counts_within, just_above
from .._rules import Elements, Fraction, Rule
from .._runs import apartness
from .._sums import Part, num_at_once, summed
from .._triplets import Listed, Unlisted
from .pairs import Pairs

Counts = tuple[Tensor, Tensor]


class TripletTerms(NamedTuple):
    """Of every triplet the positive part of x_p + y_n, where y_n falls with the distance of the negative.

    The negatives with which a positive has terms between two numbers are those between two distances. How
    many such triplets each pair is part of is all that the sum of their terms needs.

    Attributes:
        pairs: with the triplets.
        distance: that of the loss.
        x, y: ``(a, n)``, with gradient.
        reach: of b >= 0, ``(a, n)``: x_p + y_n > b where the :func:`apartness` of n is less than this of p.
        is_positive: x_p + y_n is never less than zero.
        is_smooth: a term is the softplus of x_p + y_n instead.
        divisor: that of PML's DivisorReducer.
    """

    pairs: Pairs
    distance: Any
    x: Tensor
    y: Tensor
    reach: Callable[[float], Tensor]
    is_positive: bool = False
    is_smooth: bool = False
    divisor: Tensor | None = None

    def fraction(self, rule: Rule, labels: Tensor) -> Fraction:
        triplets = self.pairs.choice.triplets
        if isinstance(triplets, Listed):
            anchors, positives, negatives = triplets
            terms = self._terms(self.x[anchors, positives] + self.y[anchors, negatives])
            return Elements(terms, None, anchors, self.divisor).fraction(rule, labels)
        low = None if rule.low is None or rule.low < 0 else rule.low  # no term is less than 0
        least = 0.0 if low is None and not self.is_positive else low
        counts = None if self.is_smooth else self._counts(triplets, least, rule.high)
        if counts is None:
            return self._fraction_by_parts(triplets, rule, labels)
        counted = counts if least == low else self._counts(triplets, None, rule.high)
        assert counted is not None
        totals = _weighted_sums(self.x, counts[0]) + _weighted_sums(self.y, counts[1])
        of_class = rule.weights_of(labels, totals)
        total = (totals if of_class is None else totals * of_class).sum().to(self.x.dtype)
        count = counted[0].sum()
        if rule.divisor == "of loss":
            assert self.divisor is not None, "the loss has no divisor"
            count = self.divisor
        return total, count

    def _terms(self, sums: Tensor) -> Tensor:
        return softplus(sums) if self.is_smooth else relu(sums)

    @torch.no_grad()
    def _counts(self, triplets: Unlisted | None, low: float | None, high: float | None) -> Counts | None:
        """How many triplets with x_p + y_n between these numbers each pair is part of, ``(a, n)``.

        None: the order of the negatives does not tell.
        """
        choice, mat = self.pairs.choice, apartness(self.distance, self.pairs.mat)
        if low is None and high is None:
            return choice.in_triplets()
        everywhere = torch.full_like(mat, torch.inf)
        lower = None
        if high is not None:
            lower = just_above(self.reach(high)) if high > 0 else everywhere
        bounds = Bounds(lower, everywhere if low is None else self.reach(low))
        if triplets is None:
            return counts_within(bounds, Order.of(mat), choice.positive, choice.negative)
        return triplets.counts_within(bounds, mat, self.distance)

    def _fraction_by_parts(self, triplets: Unlisted | None, rule: Rule, labels: Tensor) -> Fraction:
        """With all terms, a bounded number at a time."""
        pairs = self.pairs.choice if triplets is None else triplets
        positive, negative = pairs.positive, pairs.negative

        def parts(xy: Tensor) -> Iterator[Part]:
            for anchor, of_anchor in enumerate(xy):
                of_all, negatives = (x[anchor].nonzero().squeeze(1) for x in (positive, negative))
                for positives in of_all.split(num_at_once(xy, len(negatives))):
                    terms = self._terms(of_anchor[0, positives].unsqueeze(1) + of_anchor[1, negatives])
                    counts = positive[anchor, positives].unsqueeze(1) * negative[anchor, negatives]
                    if triplets is not None:
                        counts &= triplets.are_chosen(anchor, positives, negatives)
                    elements = Elements(terms, counts, torch.full_like(positives, anchor))
                    total, count = elements.fraction(rule, labels)
                    yield anchor, of_anchor, total.unsqueeze(0), count.unsqueeze(0)

        total, count = summed(parts, torch.stack([self.x, self.y], dim=1))
        return total[0], count[0]


def _weighted_sums(values: Tensor, counts: Tensor) -> Tensor:
    """Of every row, ``(a,)``, over values that count so often."""
    return (values * counts.to(values.dtype)).sum(dim=1, dtype=widest(values[:0]).dtype)
