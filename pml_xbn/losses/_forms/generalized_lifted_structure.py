"""GeneralizedLiftedStructureLoss (https://arxiv.org/abs/1703.07737, page 4)."""

from __future__ import annotations

from pytorch_metric_learning.losses import GeneralizedLiftedStructureLoss

from .._rules import Elements, Terms
from .log_sum_exp import log_sum_exp
from .pairs import Pairs


def generalized_lifted_structure(loss: GeneralizedLiftedStructureLoss, pairs: Pairs) -> dict[str, Terms]:
    margin = loss.distance.margin
    too_far = log_sum_exp(margin(pairs.mat, loss.pos_margin), pairs.positive_mask)
    too_near = log_sum_exp(margin(loss.neg_margin, pairs.mat), pairs.negative_mask)
    return {"loss": Elements((too_far + too_near).relu())}
