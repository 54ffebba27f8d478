"""DistanceWeightedMiner (https://arxiv.org/abs/1706.07567, §4)."""

from __future__ import annotations

import torch
from pytorch_metric_learning.miners import DistanceWeightedMiner
from torch import Tensor

from .._choice import Choice
from .._indices import IndicesTuple, drop_own_rows
from .candidates import Candidates
from .random_below import random_below


def distance_weighted(miner: DistanceWeightedMiner, candidates: Candidates) -> Choice:
    """Of every anchor as many triplets as its class has rows, less those with its own copy."""
    weights = _weights(miner, candidates)
    has_negatives = weights.sum(dim=1) > 0
    labels, row_labels = candidates.labels, candidates.row_labels
    by_class = row_labels.argsort()
    sorted_labels = row_labels[by_class]
    first = torch.searchsorted(sorted_labels, labels)
    num_positive = torch.searchsorted(sorted_labels, labels, right=True) - first
    num_triplets = num_positive * has_negatives
    most = max(1, int(num_triplets.max()))
    weights[:, 0] += ~has_negatives  # which multinomial needs, of every anchor
    negatives = weights.multinomial(most, replacement=True)
    is_drawn = torch.arange(most, device=labels.device) < num_triplets.unsqueeze(1)
    anchors = is_drawn.nonzero()[:, 0]
    positives = by_class[first[anchors] + random_below(num_positive[anchors])]
    triplets: IndicesTuple = anchors, positives, negatives[is_drawn]
    if candidates.own_rows is not None:
        triplets = drop_own_rows(triplets, candidates.own_rows)
    return Choice.of_lists(triplets, (len(labels), len(row_labels)))


def _weights(miner: DistanceWeightedMiner, candidates: Candidates) -> Tensor:
    """How probable every row is as a negative of an anchor, ``(a, n)``, in arbitrary units."""
    negative, dimensions = candidates.pairs.negative, candidates.distances.anchors.shape[1]
    mat = candidates.mat(miner).clamp(min=miner.cutoff)
    log_weights = (2.0 - dimensions) * mat.log() - (dimensions - 3) / 2 * (1.0 - 0.25 * mat**2).log()
    is_finite = log_weights.abs() < torch.inf
    # PML takes 0 for the pairs of a class.
    largest = (log_weights * negative).masked_fill_(~is_finite, -torch.inf).amax()
    weights = log_weights.sub_(largest).exp_()
    return weights.masked_fill_(~(negative & is_finite & (mat < miner.nonzero_loss_cutoff)), 0.0)
