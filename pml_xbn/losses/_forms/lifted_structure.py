"""LiftedStructureLoss (https://arxiv.org/abs/1511.06452, Eq. 4)."""

from __future__ import annotations

import torch
from pytorch_metric_learning.losses import LiftedStructureLoss

from .._choice import listed
from .._rules import Elements, Terms
from .log_sum_exp import log_sum_exp_or_least, or_zero
from .pairs import Pairs


def lifted_structure(loss: LiftedStructureLoss, pairs: Pairs) -> dict[str, Terms]:
    """Of every positive pair the negatives of both, where both are of the batch.

    A positive that is older than the batch is no anchor, and has no negatives. PML has it take those of the
    anchor whose number in the batch happens to be its own in memory.
    """
    margin = loss.distance.margin
    of_negatives = log_sum_exp_or_least(margin(loss.neg_margin, pairs.mat), pairs.negative)
    anchors, rows = listed(pairs.positive)
    totals = of_negatives[anchors]
    if pairs.own_rows is not None:
        num_anchors, num_rows = pairs.mat.shape
        anchor_of_row = rows.new_full((num_rows,), num_anchors)
        numbers = torch.arange(num_anchors, device=rows.device)
        # Of the anchors of one sample the last is what is stored.
        anchor_of_row.scatter_reduce_(0, pairs.own_rows, numbers, "amax", include_self=False)
        of_none = totals.new_full((1,), torch.finfo(totals.dtype).min)
        of_positives = torch.cat([of_negatives, of_none])[anchor_of_row[rows]]
        totals = torch.stack([totals, of_positives]).logsumexp(dim=0)
    terms = (or_zero(totals) + margin(pairs.mat[anchors, rows], loss.pos_margin)).relu() ** 2
    # Every pair of the batch counts twice.
    return {"loss": Elements(terms / 2, anchors=anchors)}
