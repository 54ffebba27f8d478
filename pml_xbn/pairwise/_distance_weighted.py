"""The triplets that PML's DistanceWeightedMiner draws, without a row of weights for each of them."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning import miners
from torch import Tensor

from .._arithmetic import slices, widest
from ._distances import Distances
from ._pairs import IndicesTuple, Pairs, anchors_at_once, drop_self_pairs


def mine_by_distance(miner: Any, distances: Distances, pairs: Pairs) -> Pairs:
    """Returns triplets drawn as by PML's code, which are those without own copies.

    Every anchor is in as many as there are rows of its class, its own copy included. Every positive
    is as likely as another, and negatives are drawn by their weights. PML's code copies the weights of an
    anchor for each of its triplets.
    """
    miner.reset_stats()
    with torch.no_grad():
        lists = _triplets(miner, distances, pairs)
        if pairs.self_pairs is not None:
            lists = drop_self_pairs(lists, pairs.self_pairs)
    miners.BaseMiner.output_assertion(miner, lists)
    return pairs.listed(lists)


def _triplets(miner: miners.DistanceWeightedMiner, distances: Distances, pairs: Pairs) -> IndicesTuple:
    is_positive = pairs.labels.unsqueeze(1) == pairs.row_labels
    weights = _weights_of_negatives(miner, distances, is_positive)
    num_positives = is_positive.sum(dim=1, keepdim=True)
    numbers = torch.arange(int(num_positives.max()), device=weights.device)
    parts = []
    for indices in slices(len(weights), anchors_at_once(weights.shape[1], weights.device)):
        positives = _draw(is_positive[indices], len(numbers))
        negatives = _draw(weights[indices], len(numbers))
        is_drawn = (numbers < num_positives[indices]) & (positives >= 0) & (negatives >= 0)
        anchors = is_drawn.nonzero()[:, 0] + indices.start
        parts.append((anchors, positives[is_drawn], negatives[is_drawn]))
    return tuple(torch.cat(lists) for lists in zip(*parts, strict=True))


def _weights_of_negatives(
    miner: miners.DistanceWeightedMiner, distances: Distances, is_positive: Tensor
) -> Tensor:
    """Returns weights ``(a, n)``, 0 of positives (https://arxiv.org/abs/1706.07567, section 4)."""
    num_dimensions = distances.anchors.shape[1]
    mat = distances.measure(miner.distance).clamp(min=miner.cutoff)
    is_left_out = is_positive | ~(mat < miner.nonzero_loss_cutoff)
    logs = mat.square().mul_(-0.25).add_(1).log_().mul_((3 - num_dimensions) / 2)
    logs += mat.log_().mul_(2 - num_dimensions)
    is_unknown = ~logs.isfinite()
    # As by PML's code, the largest is that of all anchors, and weights far below it are 0 by rounding.
    logs.masked_fill_(is_positive, 0).masked_fill_(is_unknown, -torch.inf)
    weights = (logs - logs.max()).exp_()
    return weights.masked_fill_(is_left_out | is_unknown, 0)


def _draw(weights: Tensor, num_draws: int) -> Tensor:
    """Returns rows ``(a, k)`` drawn by weights ``(a, n)``, -1 where all of these are 0."""
    sums = widest(weights).cumsum(dim=1)
    bounds = torch.rand(len(sums), num_draws, dtype=sums.dtype, device=sums.device) * sums[:, -1:]
    rows = torch.searchsorted(sums, bounds, right=True).clamp_(max=sums.shape[1] - 1)
    return rows.masked_fill_(weights.gather(1, rows) == 0, -1)
