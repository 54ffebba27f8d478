"""Fused losses: the terms that PML's losses hand their reducers, as functions of one matrix.

Each gets the loss, for its settings, the matrix of anchors × rows that its distance measures, the pairs, and
``over_rows``, which computes row-wise reductions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_float
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning import losses, reducers
from torch import Tensor
from torch.nn.functional import relu, softplus, threshold

from .._arithmetic import all_of, widest
from ._pairs import Pairs, similarities
from ._ranges import Ranges
from ._reductions import (
    LOG_SUM_OF_NONE,
    Count,
    LogSumExp,
    OverRows,
    Sum,
    as_numbers,
    is_of_none,
    sum_over_rows,
    total,
)

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
        low, high = _bounds(reducer)
        if counts is None and low is not None and high is None and values.ndim > 0:
            within = threshold(values, low, 0.0)
            return within, within.count_nonzero() if low >= 0 else (values > low).sum()
        is_within = _is_within_bounds(values, reducer) if values.ndim > 0 else None
        if is_within is not None:
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
        values, is_counted = self.values, _is_within_bounds(self.values, reducer)
        if is_counted is None:
            counted = torch.ones_like(values)
            return values.sum(), counted.sum(), counted
        counted = is_counted.to(values.dtype)
        if _bounds(reducer)[1] is None:
            return torch.dot(values, counted), counted.sum(), counted
        return torch.where(is_counted, values, 0.0).sum(), counted.sum(), counted  # which may be inf


def _bounds(reducer: Any) -> tuple[float | None, float | None]:
    """Returns between which values PML's ThresholdReducer counts terms; None where it has no bound."""
    return getattr(reducer, "low", None), getattr(reducer, "high", None)


def _is_within_bounds(values: Tensor, reducer: Any) -> Tensor | None:
    """Returns which values lie between the bounds of a reducer; None if it has none."""
    low, high = _bounds(reducer)
    return all_of(None if low is None else values > low, None if high is None else values < high)


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
        low, high = _bounds(reducer)
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


Terms = dict[str, Elements | TripletTerms]  # by the names of the parts of a loss


def circle(loss: losses.CircleLoss, mat: Tensor, pairs: Pairs, over_rows: OverRows) -> Terms:
    """https://arxiv.org/abs/2002.10857, Eq. 6"""
    (positive, negative), weighing = pairs.masks(), mat.detach()
    too_far = -loss.gamma * relu(loss.op - weighing) * (mat - loss.delta_p)
    too_near = loss.gamma * relu(weighing - loss.on) * (mat - loss.delta_n)
    num_positive, num_negative, positive_log_sum, negative_log_sum = over_rows(
        Count(positive),
        Count(negative),
        LogSumExp(too_far, positive),
        LogSumExp(too_near, negative),
    )
    has_both = num_positive * num_negative > 0
    terms = loss.soft_plus(positive_log_sum + negative_log_sum)
    return {"loss": Elements(terms.masked_fill(~has_both, 0))}


def contrastive(loss: losses.ContrastiveLoss, mat: Tensor, pairs: Pairs, over_rows: OverRows) -> Terms:
    """Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, Eq. 4"""
    margin = loss.distance.margin
    too_far, too_near = relu(margin(mat, loss.pos_margin)), relu(margin(loss.neg_margin, mat))
    return {"pos_loss": Elements(too_far, pairs.positive), "neg_loss": Elements(too_near, pairs.negative)}


def generalized_lifted_structure(
    loss: losses.GeneralizedLiftedStructureLoss, mat: Tensor, pairs: Pairs, over_rows: OverRows
) -> Terms:
    """https://arxiv.org/abs/1703.07737, page 4"""
    margin, (positive, negative) = loss.distance.margin, pairs.masks()
    too_far, too_near = over_rows(
        LogSumExp(margin(mat, loss.pos_margin), positive),
        LogSumExp(margin(loss.neg_margin, mat), negative),
    )
    return {"loss": Elements(relu(_or_zero(too_far) + _or_zero(too_near)))}


def multi_similarity(
    loss: losses.MultiSimilarityLoss, mat: Tensor, pairs: Pairs, over_rows: OverRows
) -> Terms:
    """https://arxiv.org/abs/1904.06627"""
    positive, negative = pairs.masks()
    alpha, beta = _as_similarity(loss, -loss.alpha), _as_similarity(loss, -loss.beta)
    positive_log_sum, negative_log_sum = over_rows(
        LogSumExp(mat, positive, scale=alpha), LogSumExp(mat, negative, scale=-beta)
    )
    too_far, too_near = positive_log_sum - alpha * loss.base, negative_log_sum + beta * loss.base
    terms = _log_one_plus_exp(too_far) / loss.alpha + _log_one_plus_exp(too_near) / loss.beta
    at_results = too_far.sigmoid() / loss.alpha, too_near.sigmoid() / loss.beta
    return {"loss": Elements(terms, at_results=at_results)}


def nca(loss: losses.NCALoss, mat: Tensor, pairs: Pairs, over_rows: OverRows) -> Terms:
    """Goldberger et al., Neighbourhood Components Analysis, NIPS 2004"""
    scale = _as_similarity(loss, loss.softmax_scale)
    # Of all rows, whichever have been chosen, the anchors' own copies included.
    same = pairs.of_same_label()
    others = ~same if pairs.is_row is None else ~same & pairs.is_row
    other_log_sum, same_log_sum, num_same, num_positive, num_negative = over_rows(
        LogSumExp(mat, others, scale),
        LogSumExp(mat, same, scale),
        Count(same),
        Count(pairs.positive),
        Count(pairs.negative),
    )
    terms = _log_one_plus_exp(other_log_sum - same_log_sum)
    # How often each anchor has been chosen, over how often the one was that has been chosen most.
    num_chosen = num_positive + num_negative
    most = num_chosen.max()
    weights = torch.where(most > 0, widest(num_chosen) / most.clamp_min(1), 1).to(terms)
    # PML's loss of a single anchor is zero.
    return {"loss": Elements(terms * weights * (len(mat) > 1), num_same > 0)}


def nt_xent(loss: losses.NTXentLoss, mat: Tensor, pairs: Pairs, over_rows: OverRows) -> Terms:
    """https://arxiv.org/abs/1807.03748, Eq. 4"""
    scale = _as_similarity(loss, 1 / loss.temperature)
    (negative_log_sum,) = over_rows(LogSumExp(mat, pairs.negative, scale))
    terms = _log_one_plus_exp(negative_log_sum.unsqueeze(1) - scale * mat)
    return {"loss": Elements(terms, pairs.positive)}


def supcon(loss: losses.SupConLoss, mat: Tensor, pairs: Pairs, over_rows: OverRows) -> Terms:
    """https://arxiv.org/abs/2004.11362, Eq. 2"""
    scale = _as_similarity(loss, 1 / loss.temperature)
    # The scale of both sums is rounded alike, so that an anchor's only positive cancels exactly.
    if isinstance(scale, Tensor):
        mat, scale = mat * scale, 1.0
    else:
        scale = _rounded(scale, mat.dtype)
    is_positive = as_numbers(pairs.positive.bool(), mat.dtype)
    num_positive, positive_sum, log_sum = over_rows(
        Count(is_positive), Sum(mat, is_positive), LogSumExp(mat, pairs.of_both(), scale, is_wide=True)
    )
    has_positive, divisor = num_positive.clamp_max(1), num_positive.clamp_min(1)
    weight = has_positive * -scale / divisor  # of a positive pair
    # In float64. It is exactly 0 where an anchor has one pair alone, a positive one, as in PML's loss.
    terms = torch.addcmul(log_sum, positive_sum, weight) * has_positive
    return {"loss": Elements(terms.to(mat.dtype), at_results=(weight, has_positive))}


def tuplet_margin(loss: losses.TupletMarginLoss, mat: Tensor, pairs: Pairs, over_rows: OverRows) -> Terms:
    """Yu and Tao, Deep Metric Learning with Tuplet Margin Loss, ICCV 2019"""
    (negative_log_sum,) = over_rows(LogSumExp(mat, pairs.negative, loss.scale))
    squared_sines = (1 - mat) * (1 + mat)
    has_gradient = squared_sines > 0  # not at 0 or 180 degrees, where it is taken for zero
    sines = torch.where(has_gradient, squared_sines, 1).sqrt() * has_gradient
    margin = torch.as_tensor(loss.margin, dtype=mat.dtype, device=mat.device)  # it may be learned
    slackened = margin.cos() * mat + margin.sin() * sines
    terms = _log_one_plus_exp(negative_log_sum.unsqueeze(1) - loss.scale * slackened)
    return {"loss": Elements(terms, pairs.positive)}


def triplet_margin(loss: losses.TripletMarginLoss, mat: Tensor, pairs: Pairs, over_rows: OverRows) -> Terms:
    """https://arxiv.org/abs/1503.03832"""
    mat = -similarities(loss.distance, mat)
    activation = softplus if loss.smooth_loss else relu
    return {"loss": _triplet_terms(mat + loss.margin, -mat, pairs, loss.distance, activation)}


def margin(loss: losses.MarginLoss, mat: Tensor, pairs: Pairs, over_rows: OverRows) -> Terms:
    """https://arxiv.org/abs/1706.07567"""
    mat, beta = -similarities(loss.distance, mat), loss.beta.to(mat)
    beta = beta.expand(len(mat)) if len(beta) == 1 else beta[pairs.labels]
    boundary = -similarities(loss.distance, beta).unsqueeze(1)
    too_far, too_near = relu(mat - boundary + loss.margin), relu(boundary - mat + loss.margin)
    positive, negative = pairs.positive, pairs.negative  # and then how many triplets each pair is part of
    if pairs.triplets is None:
        num_positive, num_negative = (x.sum(dim=1, keepdim=True) for x in (positive, negative))
        positive, negative = positive * num_negative, negative * num_positive
    divisor = (positive * (too_far > 0)).sum() + (negative * (too_near > 0)).sum()
    terms = _triplet_terms(too_far, too_near, pairs, loss.distance, None)._replace(divisor=divisor)
    regularization = Elements(mat[:, :0].sum())  # zero
    if loss.learn_beta and len(loss.beta) == 1:  # counts once and for all, if there are triplets
        regularization = Elements(beta[0] * loss.nu * positive.any())
    elif loss.learn_beta:  # counts with every triplet
        regularization = Elements(beta * loss.nu, positive.sum(dim=1), divisor=divisor)
    return {"margin_loss": terms, "beta_reg_loss": regularization}


def _triplet_terms(
    x: Tensor, y: Tensor, pairs: Pairs, distance: Any, activation: Callable[[Tensor], Tensor] | None
) -> Elements | TripletTerms:
    """Returns the terms of x_p + y_n, where x grows with the distance; without activation none is below 0."""
    triplets = pairs.triplets or Ranges.all(x.detach(), pairs.positive, pairs.negative, distance)
    if isinstance(triplets, Ranges):
        if activation is not softplus and triplets.are_sorted_by(x.detach(), distance):
            return TripletTerms(x, y, triplets, is_positive=activation is None)
        triplets = triplets.lists()
    anchors, positives, negatives = triplets
    terms = x[anchors, positives] + y[anchors, negatives]
    return Elements(terms if activation is None else activation(terms))


def intra_pair_variance(
    loss: losses.IntraPairVarianceLoss, mat: Tensor, pairs: Pairs, over_rows: OverRows
) -> Terms:
    """Yu and Tao, Deep Metric Learning with Tuplet Margin Loss, ICCV 2019"""
    positive, negative, is_inverted = pairs.positive, pairs.negative, loss.distance.is_inverted
    positive_sum, num_positive, negative_sum, num_negative = over_rows(
        Sum(mat, positive),
        Count(positive),
        Sum(mat, negative),
        Count(negative),
    )
    positive_mean = positive_sum.sum() / num_positive.sum().clamp_min(1)
    negative_mean = negative_sum.sum() / num_negative.sum().clamp_min(1)
    too_far = relu(loss.variance_with_eps(mat, positive_mean, loss.pos_eps, is_inverted))
    too_near = relu(loss.variance_with_eps(mat, negative_mean, loss.neg_eps, not is_inverted))
    return {"pos_loss": Elements(too_far**2, positive), "neg_loss": Elements(too_near**2, negative)}


def lifted_structure(
    loss: losses.LiftedStructureLoss, mat: Tensor, pairs: Pairs, over_rows: OverRows
) -> Terms:
    """https://arxiv.org/abs/1511.06452, Eq. 4"""
    margin = loss.distance.margin
    (negative_log_sum,) = over_rows(LogSumExp(margin(loss.neg_margin, mat), pairs.negative))
    totals = negative_log_sum.unsqueeze(1).expand_as(mat)
    # Of every positive pair the negatives of both, where both are of the batch: an older one has none.
    if pairs.self_pairs is not None:
        # Of the anchors of one sample the last is what is stored.
        anchors = torch.arange(len(mat), device=mat.device)
        anchor_of_row = torch.full_like(pairs.row_labels, -1)
        anchor_of_row.scatter_reduce_(0, pairs.self_pairs, anchors, "amax", include_self=False)
        copy_log_sum = negative_log_sum[anchor_of_row]
        copy_log_sum = copy_log_sum.masked_fill(anchor_of_row < 0, LOG_SUM_OF_NONE)
        totals = torch.logaddexp(totals, copy_log_sum)
    terms = relu(_or_zero(totals) + margin(mat, loss.pos_margin)) ** 2
    return {"loss": Elements(terms / 2, pairs.positive)}  # every pair of the batch counts twice


def _or_zero(log_sums: Tensor) -> Tensor:
    """Returns 0 where there was nothing to sum."""
    return log_sums.masked_fill(is_of_none(log_sums), 0)


def _as_similarity(loss: Any, scale: Any) -> Any:
    """Returns the scale with a sign by which the scaled matrix is larger for closer vectors."""
    return scale if loss.distance.is_inverted else -scale


def _rounded(number: Any, dtype: torch.dtype) -> Any:
    """Returns a number of the host as a tensor of this dtype holds it."""
    return c_float(number).value if isinstance(number, float) and dtype == torch.float32 else number


def _log_one_plus_exp(exponents: Tensor) -> Tensor:
    """Returns log(1 + exp(x)) to the last digit; PyTorch's default takes x for it from 20 on."""
    return softplus(exponents, threshold=40)


class Fused(NamedTuple):
    """How a class of PML's losses is computed from one matrix."""

    terms: Callable[[Any, Tensor, Pairs, OverRows], Terms] | None  # None: by PML's code, some pairs at a time
    has_term_per_anchor: bool = False  # its reducer gets one value of each anchor, and not one of each pair
    needs_both: bool = False  # zero unless there are positive and negative pairs
    anchors_are_independent: bool = True  # an anchor's terms depend on no other anchor
    can_be_sharded: bool = True  # its terms follow from reductions over rows
    parts: tuple[str, ...] = ("loss",)  # by PML's names
    has_divisor: bool = False  # it hands PML's DivisorReducer what to divide by
    has_derivatives: bool = False  # it gives the derivatives of its terms, which are of anchors


_POSITIVE_AND_NEGATIVE = ("pos_loss", "neg_loss")
FUSED_LOSSES: dict[type, Fused] = {
    losses.AngularLoss: Fused(None, anchors_are_independent=False, can_be_sharded=False),
    losses.CircleLoss: Fused(circle, has_term_per_anchor=True),
    losses.ContrastiveLoss: Fused(contrastive, parts=_POSITIVE_AND_NEGATIVE),
    losses.GeneralizedLiftedStructureLoss: Fused(generalized_lifted_structure, has_term_per_anchor=True),
    losses.IntraPairVarianceLoss: Fused(
        intra_pair_variance, anchors_are_independent=False, parts=_POSITIVE_AND_NEGATIVE
    ),
    losses.LiftedStructureLoss: Fused(
        lifted_structure, needs_both=True, anchors_are_independent=False, can_be_sharded=False
    ),
    losses.MarginLoss: Fused(
        margin, can_be_sharded=False, parts=("margin_loss", "beta_reg_loss"), has_divisor=True
    ),
    losses.MultiSimilarityLoss: Fused(multi_similarity, has_term_per_anchor=True, has_derivatives=True),
    losses.NCALoss: Fused(nca, has_term_per_anchor=True, anchors_are_independent=False),
    losses.NTXentLoss: Fused(nt_xent, needs_both=True),
    losses.SignalToNoiseRatioContrastiveLoss: Fused(contrastive, parts=_POSITIVE_AND_NEGATIVE),
    losses.SupConLoss: Fused(supcon, has_term_per_anchor=True, needs_both=True, has_derivatives=True),
    losses.TripletMarginLoss: Fused(triplet_margin, can_be_sharded=False),
    losses.TupletMarginLoss: Fused(tuplet_margin, needs_both=True),
}
