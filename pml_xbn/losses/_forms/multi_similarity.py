"""MultiSimilarityLoss (https://arxiv.org/abs/1904.06627)."""

from __future__ import annotations

from pytorch_metric_learning.losses import MultiSimilarityLoss

from .._rules import Elements, Terms
from .log_sum_exp import log_sum_exp
from .pairs import Pairs


def multi_similarity(loss: MultiSimilarityLoss, pairs: Pairs) -> dict[str, Terms]:
    margin = loss.distance.margin
    too_far = log_sum_exp(loss.alpha * margin(pairs.mat, loss.base), pairs.positive_mask, add_one=True)
    too_near = log_sum_exp(loss.beta * margin(loss.base, pairs.mat), pairs.negative_mask, add_one=True)
    return {"loss": Elements(too_far / loss.alpha + too_near / loss.beta)}
