"""DistanceWeightedMiner (https://arxiv.org/abs/1706.07567, §4)."""

from __future__ import annotations

import torch
from pytorch_metric_learning.miners import DistanceWeightedMiner
from torch import Tensor

from .._choice import Choice
from .candidates import Candidates
from .random_below import random_below


def distance_weighted(miner: DistanceWeightedMiner, candidates: Candidates) -> Choice:
    """Of every anchor as many triplets as its class has rows, less those with its own copy."""
    weights = _weights(miner, candidates)
    has_negatives = weights.sum(dim=1) > 0
    by_class = candidates.row_labels.argsort()
    labels, sorted_labels = candidates.labels.unsqueeze(1), candidates.row_labels[by_class]
    first = torch.searchsorted(sorted_labels, labels)
    num_positive = torch.searchsorted(sorted_labels, labels, right=True) - first
    num_triplets = num_positive * has_negatives.unsqueeze(1)
    most = max(1, int(num_triplets.max()))
    weights[:, 0] += ~has_negatives  # multinomial refuses weights that are all 0
    negatives = weights.multinomial(most, replacement=True)
    places = first + random_below(num_positive.expand(-1, most))
    positives = by_class[places.clamp_max_(len(by_class) - 1)]
    is_drawn = torch.arange(most, device=labels.device) < num_triplets
    if candidates.own_rows is not None:
        is_drawn &= positives != candidates.own_rows.unsqueeze(1)
    triplets = is_drawn.nonzero()[:, 0], positives[is_drawn], negatives[is_drawn]
    return Choice.of_lists(triplets, (weights.shape[0], weights.shape[1]))


def _weights(miner: DistanceWeightedMiner, candidates: Candidates) -> Tensor:
    """How probable every row is as a negative of an anchor, ``(a, n)``, in arbitrary units."""
    negative, dimensions = candidates.pairs.negative, candidates.distances.anchors.shape[1]
    mat = candidates.mat(miner).clamp(min=miner.cutoff)
    log_weights = mat.log().mul_(2.0 - dimensions)
    log_weights -= mat.square().mul_(-0.25).add_(1.0).log_().mul_((dimensions - 3) / 2)
    is_finite = log_weights.abs() < torch.inf
    # PML takes 0 for the pairs of a class.
    largest = (log_weights * negative).masked_fill_(~is_finite, -torch.inf).amax()
    weights = log_weights.sub_(largest).exp_()
    return weights.masked_fill_(~(negative & is_finite & (mat < miner.nonzero_loss_cutoff)), 0.0)
