"""NTXentLoss (https://arxiv.org/abs/1807.03748, Eq. 4)."""

from __future__ import annotations

from pytorch_metric_learning.losses import NTXentLoss

from .._choice import listed
from .._rules import Elements, Terms
from .log_sum_exp import log_one_plus_exp, log_sum_exp_or_least
from .pairs import Pairs


def nt_xent(loss: NTXentLoss, pairs: Pairs) -> dict[str, Terms]:
    logits = pairs.similarities(loss.distance) / loss.temperature
    of_negatives = log_sum_exp_or_least(logits, pairs.negative)
    anchors, rows = listed(pairs.positive)
    terms = log_one_plus_exp(of_negatives[anchors] - logits[anchors, rows])
    return {"loss": Elements(terms, anchors=anchors)}
