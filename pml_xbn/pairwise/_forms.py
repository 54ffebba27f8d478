"""The terms that PML's losses hand their reducers, as plain differentiable functions of one matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning import losses
from torch import Tensor
from torch.nn.functional import relu, softplus

from .._arithmetic import widest
from ._pairs import Pairs, similarities
from ._reductions import Count, LogSumExp, Reducing, Sum
from ._runs import Runs
from ._terms import Elements, TripletTerms

Terms = dict[str, Elements | TripletTerms]  # by the names of the parts of a loss


def circle(loss: losses.CircleLoss, mat: Tensor, pairs: Pairs) -> Reducing[Terms]:
    """https://arxiv.org/abs/2002.10857, Eq. 6"""
    (positive, negative), weighing = pairs.masks(), mat.detach()
    too_far = -loss.gamma * relu(loss.op - weighing) * (mat - loss.delta_p)
    too_near = loss.gamma * relu(weighing - loss.on) * (mat - loss.delta_n)
    num_positive, num_negative, positive_log_sum, negative_log_sum = yield [
        Count(positive),
        Count(negative),
        LogSumExp(too_far, positive),
        LogSumExp(too_near, negative),
    ]
    has_both = num_positive * num_negative > 0
    terms = loss.soft_plus(positive_log_sum + negative_log_sum)
    return {"loss": Elements(terms.masked_fill(~has_both, 0))}


def contrastive(loss: losses.ContrastiveLoss, mat: Tensor, pairs: Pairs) -> Terms:
    """Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, Eq. 4"""
    margin = loss.distance.margin
    too_far, too_near = relu(margin(mat, loss.pos_margin)), relu(margin(loss.neg_margin, mat))
    return {"pos_loss": Elements(too_far, pairs.positive), "neg_loss": Elements(too_near, pairs.negative)}


def generalized_lifted_structure(
    loss: losses.GeneralizedLiftedStructureLoss, mat: Tensor, pairs: Pairs
) -> Reducing[Terms]:
    """https://arxiv.org/abs/1703.07737, page 4"""
    margin, (positive, negative) = loss.distance.margin, pairs.masks()
    too_far, too_near = yield [
        LogSumExp(margin(mat, loss.pos_margin), positive),
        LogSumExp(margin(loss.neg_margin, mat), negative),
    ]
    return {"loss": Elements(relu(_or_zero(too_far) + _or_zero(too_near)))}


def multi_similarity(loss: losses.MultiSimilarityLoss, mat: Tensor, pairs: Pairs) -> Reducing[Terms]:
    """https://arxiv.org/abs/1904.06627"""
    margin, (positive, negative) = loss.distance.margin, pairs.masks()
    positive_log_sum, negative_log_sum = yield [
        LogSumExp(loss.alpha * margin(mat, loss.base), positive),
        LogSumExp(loss.beta * margin(loss.base, mat), negative),
    ]
    too_far, too_near = _log_one_plus_exp(positive_log_sum), _log_one_plus_exp(negative_log_sum)
    return {"loss": Elements(too_far / loss.alpha + too_near / loss.beta)}


def nca(loss: losses.NCALoss, mat: Tensor, pairs: Pairs) -> Reducing[Terms]:
    """Goldberger et al., Neighbourhood Components Analysis, NIPS 2004"""
    logits = loss.softmax_scale * similarities(loss.distance, mat)
    # Of all rows, whichever have been chosen, the anchors' own copies included.
    same = pairs.labels.unsqueeze(1) == pairs.row_labels
    log_sum, same_log_sum, num_same, num_positive, num_negative = yield [
        LogSumExp(logits, torch.ones_like(same)),
        LogSumExp(logits, same),
        Count(same),
        Count(pairs.positive),
        Count(pairs.negative),
    ]
    terms = log_sum - same_log_sum
    # How often each anchor has been chosen, over how often the one was that has been chosen most.
    num_chosen = num_positive + num_negative
    most = num_chosen.max()
    weights = torch.where(most > 0, widest(num_chosen) / most.clamp_min(1), 1).to(terms)
    # PML's loss of a single anchor is zero.
    return {"loss": Elements(terms * weights * (len(mat) > 1), num_same > 0)}


def nt_xent(loss: losses.NTXentLoss, mat: Tensor, pairs: Pairs) -> Reducing[Terms]:
    """https://arxiv.org/abs/1807.03748, Eq. 4"""
    logits = similarities(loss.distance, mat) / loss.temperature
    (negative_log_sum,) = yield [LogSumExp(logits, pairs.negative)]
    terms = _log_one_plus_exp(negative_log_sum.unsqueeze(1) - logits)
    return {"loss": Elements(terms, pairs.positive)}


def supcon(loss: losses.SupConLoss, mat: Tensor, pairs: Pairs) -> Reducing[Terms]:
    """https://arxiv.org/abs/2004.11362, Eq. 2"""
    logits = similarities(loss.distance, mat) / loss.temperature
    positive, negative = pairs.masks()
    num_positive, positive_sum, log_sum = yield [
        Count(positive),
        Sum(logits, positive),
        LogSumExp(logits, positive | negative),
    ]
    positive_mean = positive_sum / num_positive.clamp_min(1)
    return {"loss": Elements((log_sum - positive_mean).masked_fill(num_positive == 0, 0))}


def tuplet_margin(loss: losses.TupletMarginLoss, mat: Tensor, pairs: Pairs) -> Reducing[Terms]:
    """Yu and Tao, Deep Metric Learning with Tuplet Margin Loss, ICCV 2019"""
    (negative_log_sum,) = yield [LogSumExp(loss.scale * mat, pairs.negative)]
    squared_sines = (1 - mat) * (1 + mat)
    has_gradient = squared_sines > 0  # not at 0 or 180 degrees, where it is taken for zero
    sines = torch.where(has_gradient, squared_sines, 1).sqrt() * has_gradient
    margin = torch.as_tensor(loss.margin, dtype=mat.dtype)  # which may be learned
    slackened = margin.cos() * mat + margin.sin() * sines
    terms = _log_one_plus_exp(negative_log_sum.unsqueeze(1) - loss.scale * slackened)
    return {"loss": Elements(terms, pairs.positive)}


def triplet_margin(loss: losses.TripletMarginLoss, mat: Tensor, pairs: Pairs) -> Terms:
    """https://arxiv.org/abs/1503.03832"""
    mat = -similarities(loss.distance, mat)
    activation = softplus if loss.smooth_loss else relu
    return {"loss": _triplet_terms(mat + loss.margin, -mat, pairs, activation)}


def margin(loss: losses.MarginLoss, mat: Tensor, pairs: Pairs) -> Terms:
    """https://arxiv.org/abs/1706.07567"""
    mat, beta = -similarities(loss.distance, mat), loss.beta.to(mat)
    beta = beta.expand(len(mat)) if len(beta) == 1 else beta[pairs.labels]
    boundary = -similarities(loss.distance, beta).unsqueeze(1)
    too_far, too_near = relu(mat - boundary + loss.margin), relu(boundary - mat + loss.margin)
    positive, negative = pairs[:2]  # and then how many triplets each pair is part of
    if pairs.triplets is None:
        num_positive, num_negative = (x.sum(dim=1, keepdim=True) for x in (positive, negative))
        positive, negative = positive * num_negative, negative * num_positive
    divisor = (positive * (too_far > 0)).sum() + (negative * (too_near > 0)).sum()
    terms = _triplet_terms(too_far, too_near, pairs, None)._replace(divisor=divisor)
    regularization = Elements(mat[:, :0].sum())  # zero
    if loss.learn_beta and len(loss.beta) == 1:  # counts once and for all, if there are triplets
        regularization = Elements(beta[0] * loss.nu * positive.any())
    elif loss.learn_beta:  # counts with every triplet
        regularization = Elements(beta * loss.nu, positive.sum(dim=1), divisor=divisor)
    return {"margin_loss": terms, "beta_reg_loss": regularization}


def _triplet_terms(
    x: Tensor, y: Tensor, pairs: Pairs, activation: Callable[[Tensor], Tensor] | None
) -> Elements | TripletTerms:
    """Returns the terms of x_p + y_n, where x grows with the distance; without activation none is below 0."""
    triplets = pairs.triplets or Runs.all(x.detach(), *pairs[:2])
    if isinstance(triplets, Runs):
        if activation is not softplus and triplets.are_ordered_by(x.detach()):
            return TripletTerms(x, y, triplets, is_positive=activation is None)
        triplets = triplets.lists()
    anchors, positives, negatives = triplets
    terms = x[anchors, positives] + y[anchors, negatives]
    return Elements(terms if activation is None else activation(terms))


def intra_pair_variance(loss: losses.IntraPairVarianceLoss, mat: Tensor, pairs: Pairs) -> Reducing[Terms]:
    """Yu and Tao, Deep Metric Learning with Tuplet Margin Loss, ICCV 2019"""
    positive, negative, is_inverted = pairs.positive, pairs.negative, loss.distance.is_inverted
    positive_sum, num_positive, negative_sum, num_negative = yield [
        Sum(mat, positive),
        Count(positive),
        Sum(mat, negative),
        Count(negative),
    ]
    positive_mean = positive_sum.sum() / num_positive.sum().clamp_min(1)
    negative_mean = negative_sum.sum() / num_negative.sum().clamp_min(1)
    too_far = relu(loss.variance_with_eps(mat, positive_mean, loss.pos_eps, is_inverted))
    too_near = relu(loss.variance_with_eps(mat, negative_mean, loss.neg_eps, not is_inverted))
    return {"pos_loss": Elements(too_far**2, positive), "neg_loss": Elements(too_near**2, negative)}


def lifted_structure(loss: losses.LiftedStructureLoss, mat: Tensor, pairs: Pairs) -> Reducing[Terms]:
    """https://arxiv.org/abs/1511.06452, Eq. 4"""
    margin = loss.distance.margin
    (negative_log_sum,) = yield [LogSumExp(margin(loss.neg_margin, mat), pairs.negative)]
    totals = negative_log_sum.unsqueeze(1).expand_as(mat)
    # Of every positive pair the negatives of both, where both are of the batch: an older one has none.
    if pairs.own_rows is not None:
        # Of the anchors of one sample the last is what is stored.
        anchors = torch.arange(len(mat), device=mat.device)
        anchor_of_row = torch.full_like(pairs.row_labels, -1)
        anchor_of_row.scatter_reduce_(0, pairs.own_rows, anchors, "amax", include_self=False)
        own_row_sum = negative_log_sum[anchor_of_row]
        own_row_sum = own_row_sum.masked_fill(anchor_of_row < 0, torch.finfo(mat.dtype).min)
        totals = torch.logaddexp(totals, own_row_sum)
    terms = relu(_or_zero(totals) + margin(mat, loss.pos_margin)) ** 2
    return {"loss": Elements(terms / 2, pairs.positive)}  # every pair of the batch counts twice


def _or_zero(log_sums: Tensor) -> Tensor:
    """Returns 0 where there was nothing to sum."""
    return log_sums.masked_fill(log_sums <= torch.finfo(log_sums.dtype).min / 2, 0)


def _log_one_plus_exp(exponents: Tensor) -> Tensor:
    """Returns log(1 + exp(x)) to the last digit; PyTorch's default takes x for it from 20 on."""
    return softplus(exponents, threshold=40)


class Form(NamedTuple):
    """How a loss of PML's is computed from one matrix."""

    # Of (loss, mat, pairs), and a generator if it needs reductions; None: by PML's own code.
    terms: Callable[[Any, Tensor, Pairs], Terms | Reducing[Terms]] | None
    is_per_anchor: bool = False  # its reducer gets one value of each anchor, and not one of each pair
    needs_both_kinds: bool = False  # zero unless there are positive and negative pairs
    is_by_anchor: bool = True  # an anchor's terms depend on no other anchor
    is_reduced: bool = True  # they follow from reductions over the anchor's rows
    parts: tuple[str, ...] = ("loss",)  # by PML's names
    has_divisor: bool = False  # it hands PML's DivisorReducer what to divide by


_OF_BOTH_KINDS = ("pos_loss", "neg_loss")
FORMS: dict[type, Form] = {
    losses.AngularLoss: Form(None, is_by_anchor=False, is_reduced=False),
    losses.CircleLoss: Form(circle, is_per_anchor=True),
    losses.ContrastiveLoss: Form(contrastive, parts=_OF_BOTH_KINDS),
    losses.GeneralizedLiftedStructureLoss: Form(generalized_lifted_structure, is_per_anchor=True),
    losses.IntraPairVarianceLoss: Form(intra_pair_variance, is_by_anchor=False, parts=_OF_BOTH_KINDS),
    losses.LiftedStructureLoss: Form(
        lifted_structure, needs_both_kinds=True, is_by_anchor=False, is_reduced=False
    ),
    losses.MarginLoss: Form(
        margin, is_reduced=False, parts=("margin_loss", "beta_reg_loss"), has_divisor=True
    ),
    losses.MultiSimilarityLoss: Form(multi_similarity, is_per_anchor=True),
    losses.NCALoss: Form(nca, is_per_anchor=True, is_by_anchor=False),
    losses.NTXentLoss: Form(nt_xent, needs_both_kinds=True),
    losses.SignalToNoiseRatioContrastiveLoss: Form(contrastive, parts=_OF_BOTH_KINDS),
    losses.SupConLoss: Form(supcon, is_per_anchor=True, needs_both_kinds=True),
    losses.TripletMarginLoss: Form(triplet_margin, is_reduced=False),
    losses.TupletMarginLoss: Form(tuplet_margin, needs_both_kinds=True),
}
