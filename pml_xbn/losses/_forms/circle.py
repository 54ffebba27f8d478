"""CircleLoss (https://arxiv.org/abs/2002.10857, Eq. 6)."""

from __future__ import annotations

from pytorch_metric_learning.losses import CircleLoss

from .._rules import Elements, Terms
from .log_sum_exp import log_sum_exp
from .pairs import Pairs


def circle(loss: CircleLoss, pairs: Pairs) -> dict[str, Terms]:
    positive, negative, weighing = pairs.positive_mask, pairs.negative_mask, pairs.mat.detach()
    too_far = -loss.gamma * (loss.op - weighing).relu_() * (pairs.mat - loss.delta_p)
    too_near = loss.gamma * (weighing - loss.on).relu_() * (pairs.mat - loss.delta_n)
    terms = loss.soft_plus(log_sum_exp(too_far, positive) + log_sum_exp(too_near, negative))
    return {"loss": Elements(terms * (positive.any(dim=1) & negative.any(dim=1)))}
