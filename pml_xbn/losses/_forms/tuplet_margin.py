"""TupletMarginLoss (Yu and Tao, Deep Metric Learning with Tuplet Margin Loss, ICCV 2019)."""

from __future__ import annotations

import math

import torch
from pytorch_metric_learning.losses import TupletMarginLoss

from .._choice import listed
from .._rules import Elements, Terms
from .log_sum_exp import log_one_plus_exp, log_sum_exp_or_least
from .pairs import Pairs


def tuplet_margin(loss: TupletMarginLoss, pairs: Pairs) -> dict[str, Terms]:
    """With the angle's gradient taken for zero where it has none, at an angle of 0 or 180 degrees."""
    of_negatives = log_sum_exp_or_least(loss.scale * pairs.mat, pairs.negative)
    anchors, rows = listed(pairs.positive)
    cosines = pairs.mat[anchors, rows]
    squared_sines = (1 - cosines) * (1 + cosines)
    has_gradient = squared_sines > 0
    sines = torch.where(has_gradient, squared_sines, 1).sqrt() * has_gradient
    slackened = math.cos(loss.margin) * cosines + math.sin(loss.margin) * sines
    terms = log_one_plus_exp(of_negatives[anchors] - loss.scale * slackened)
    return {"loss": Elements(terms, anchors=anchors)}
