"""SupConLoss (https://arxiv.org/abs/2004.11362, Eq. 2)."""

from __future__ import annotations

import torch
from pytorch_metric_learning.losses import SupConLoss

from .._rules import Elements, Terms
from .log_sum_exp import log_sum_exp
from .pairs import Pairs


def supcon(loss: SupConLoss, pairs: Pairs) -> dict[str, Terms]:
    positive, logits = pairs.positive_mask, pairs.similarities(loss.distance) / loss.temperature
    num_positive = positive.view(torch.uint8).sum(dim=1, dtype=torch.int32)  # a CPU sums bool slowly
    of_positives = torch.where(positive, logits, 0).sum(dim=1) / num_positive.clamp_min(1)
    of_all = log_sum_exp(logits, positive | pairs.negative_mask)
    return {"loss": Elements((of_all - of_positives).masked_fill(num_positive == 0, 0))}
