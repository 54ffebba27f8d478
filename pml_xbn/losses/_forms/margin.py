"""MarginLoss (https://arxiv.org/abs/1706.07567)."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import MarginLoss
from torch import Tensor
from torch.nn.functional import relu

from .._rules import Elements, Terms
from .._runs import apartness
from .pairs import Pairs
from .triplets import TripletTerms


def margin(loss: MarginLoss, pairs: Pairs) -> dict[str, Terms]:
    mat, beta = apartness(loss.distance, pairs.mat), _beta(loss, pairs)
    boundary = apartness(loss.distance, beta).unsqueeze(1)
    too_far, too_near = relu(mat - boundary + loss.margin), relu(boundary - mat + loss.margin)

    def reach(term: float) -> Tensor:
        return torch.where(too_far > term, torch.inf, boundary + (loss.margin - term) + too_far)

    positive, negative = pairs.choice.in_triplets()
    divisor = (positive * (too_far > 0)).sum() + (negative * (too_near > 0)).sum()
    # One learned β counts once and for all, one of a class with every triplet.
    is_regularized = loss.learn_beta and len(loss.beta) > 1
    counts = positive.sum(dim=1) * is_regularized
    return {
        "margin_loss": TripletTerms(
            pairs, loss.distance, too_far, too_near, reach, is_positive=True, divisor=divisor
        ),
        "beta_reg_loss": Elements(beta * loss.nu, counts, divisor=divisor * is_regularized),
    }


def regularizer(loss: MarginLoss, pairs: Pairs) -> dict[str, Any]:
    """That of a single learned β, zero if there are no triplets."""
    if not loss.learn_beta or len(loss.beta) > 1:
        return {}
    value = _beta(loss, pairs)[:1] * loss.nu * pairs.choice.in_triplets()[0].any()
    return {"beta_reg_loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


def _beta(loss: MarginLoss, pairs: Pairs) -> Tensor:
    """Of every anchor, ``(a,)``."""
    beta: Tensor = loss.beta.to(pairs.mat)
    return beta.expand(len(pairs.labels)) if len(beta) == 1 else beta[pairs.labels]
