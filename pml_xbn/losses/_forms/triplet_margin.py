"""TripletMarginLoss (https://arxiv.org/abs/1503.03832)."""

from __future__ import annotations

from pytorch_metric_learning.losses import TripletMarginLoss

from .._rules import Terms
from .._runs import apartness
from .pairs import Pairs
from .triplets import TripletTerms


def triplet_margin(loss: TripletMarginLoss, pairs: Pairs) -> dict[str, Terms]:
    mat = apartness(loss.distance, pairs.mat)
    return {
        "loss": TripletTerms(
            pairs,
            loss.distance,
            x=mat + loss.margin,
            y=-mat,
            reach=lambda term: mat + (loss.margin - term),
            is_smooth=loss.smooth_loss,
        )
    }
