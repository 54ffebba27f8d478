"""NCALoss (Goldberger et al., Neighbourhood Components Analysis, NIPS 2004)."""

from __future__ import annotations

import torch
from pytorch_metric_learning.losses import NCALoss
from torch import Tensor

from ..._dtypes import widest
from .._choice import Choice
from .._rules import Elements, Terms
from .log_sum_exp import log_sum_exp
from .pairs import Pairs


def shares_of_pairs(choice: Choice) -> Tensor:
    """How often each anchor has been chosen, over how often the one was that has been chosen most."""
    counts = choice.positive.sum(dim=1)
    if choice.triplets is None:
        counts = counts + choice.negative.sum(dim=1)
    if len(counts) == 1:  # a batch of one, of which PML's loss is zero
        return torch.zeros_like(counts)
    most = counts.max()
    return torch.where(most > 0, widest(counts) / most.clamp_min(1), 1)


def nca(loss: NCALoss, pairs: Pairs) -> dict[str, Terms]:
    """Of all rows, whichever have been chosen, the anchors' own copies included."""
    logits = loss.softmax_scale * pairs.similarities(loss.distance)
    same = pairs.labels.unsqueeze(1) == pairs.row_labels
    of_all = logits.logsumexp(dim=1)
    assert pairs.weights is not None
    terms = (of_all - log_sum_exp(logits, same)) * pairs.weights.to(logits)
    return {"loss": Elements(terms, same.any(dim=1))}
