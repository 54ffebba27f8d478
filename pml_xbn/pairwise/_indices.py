"""Index tuples of PML: pairs ``(a1, p, a2, n)`` or triplets ``(a, p, n)``."""

from __future__ import annotations

import torch
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

IndicesTuple = tuple[Tensor, ...]


def mapped(given: IndicesTuple, rows: Tensor) -> IndicesTuple:
    """Pairs or triplets whose positives and negatives number ``rows`` instead of what ``rows`` number."""
    # Triplets are (anchor, positive, negative), pairs (anchor, positive, anchor, negative).
    is_anchor = (True, False, False) if len(given) == 3 else (True, False, True, False)
    numbers = (x.to(rows.device, torch.int64) for x in given)
    return tuple(x if anchor else rows[x] for x, anchor in zip(numbers, is_anchor, strict=True))


def appended(indices: IndicesTuple, given: IndicesTuple, labels: Tensor) -> IndicesTuple:
    """``indices`` followed by ``given``, three tensors (triplets) or four (pairs) as the first has.

    Args:
        labels: of the batch, ``(b,)``.
    """
    if len(given) == 3 and len(indices) == 4:
        given = lmu.convert_to_pairs(given, labels)
    elif len(given) == 4 and len(indices) == 3:
        given = lmu.convert_to_triplets(given, labels)
    return tuple(torch.cat([a, b.to(a.device)]) for a, b in zip(indices, given, strict=True))


def drop_own_rows(indices: IndicesTuple, own_rows: Tensor) -> IndicesTuple:
    """Takes out what a miner that lists its pairs by other means chose all the same."""
    if len(indices) == 3:
        anchors, positives, negatives = indices
        keep = (positives != own_rows[anchors]) & (negatives != own_rows[anchors])
        return anchors[keep], positives[keep], negatives[keep]
    anchors, positives, other_anchors, negatives = indices
    keep, keep_other = positives != own_rows[anchors], negatives != own_rows[other_anchors]
    return anchors[keep], positives[keep], other_anchors[keep_other], negatives[keep_other]
