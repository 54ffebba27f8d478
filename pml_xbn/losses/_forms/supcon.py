"""SupConLoss (https://arxiv.org/abs/2004.11362, Eq. 2)."""

from __future__ import annotations

from pytorch_metric_learning.losses import SupConLoss

from .._rules import Elements, Terms
from .log_sum_exp import log_sum_exp
from .pairs import Pairs


def supcon(loss: SupConLoss, pairs: Pairs) -> dict[str, Terms]:
    positive, logits = pairs.positive > 0, pairs.similarities(loss.distance) / loss.temperature
    num_positive = positive.sum(dim=1)
    of_positives = logits.masked_fill(~positive, 0).sum(dim=1) / num_positive.clamp_min(1)
    of_all = log_sum_exp(logits, positive | (pairs.negative > 0))
    return {"loss": Elements((of_all - of_positives).masked_fill(num_positive == 0, 0))}
