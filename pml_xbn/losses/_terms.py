"""What a loss hands its reducer for given pairs, which may be part of more pairs elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from . import _anchor_slices
from ._masks import PairMasks
from ._pairs import IndicesTuple

Info = dict[str, Any]  # what a loss of PML hands its reducer

# Those that are zero unless there are pairs of both kinds.
OF_BOTH_KINDS = (losses.AngularLoss, losses.NTXentLoss, losses.SupConLoss, losses.TupletMarginLoss)


def of_masks(
    loss: Any, mat: Tensor, masks: PairMasks, num_pairs: list[int], is_part: bool
) -> dict[str, Info]:
    """Of the pairs that masks choose, for a loss that would scatter its index lists into masks.

    Args:
        mat: distances, ``(a, n)``.
        num_pairs: how many the masks choose.
        is_part: of more pairs elsewhere, so that a lack of one kind of pair here means nothing.
    """
    has_both = all(num_pairs)
    if (has_both or is_part) and _anchor_slices.are_worth_it(loss, mat):
        return _anchor_slices.sliced_losses(loss, mat, *masks)
    positive, negative = (mask.to(mat.dtype) for mask in masks)
    if has_both or not (is_part and isinstance(loss, losses.SupConLoss)):
        return dict(loss._compute_loss(mat, positive, negative))
    # SupConLoss asks whether there are pairs of both kinds. A last row that is no anchor has them.
    one_pair = torch.zeros_like(mat[:1])
    one_pair[0, 0] = 1
    padded = (torch.cat(pair) for pair in ((mat, mat[:1]), (positive, one_pair), (negative, one_pair)))
    terms = loss._compute_loss(*padded)["loss"]
    return {"loss": {**terms, "losses": terms["losses"][:-1], "indices": terms["indices"][:-1]}}


def of_lists(loss: Any, mat: Tensor, pairs: IndicesTuple, is_part: bool) -> dict[str, Info]:
    """Of the pairs that are listed, for a loss that looks these up in the matrix."""
    a1, p, a2, _ = pairs
    if is_part and isinstance(loss, OF_BOTH_KINDS) and len(a2) == 0:
        nobody = a1.new_full((1,), len(mat))  # whose negative pair counts for no anchor
        return dict(loss._compute_loss(mat[a1, p], mat.new_zeros(1), (a1, p, nobody, nobody)))
    return dict(loss.loss_method(mat, pairs))


def of_loss(
    loss: Any, anchors: Tensor, labels: Tensor, indices: Any, rows: Tensor, row_labels: Tensor
) -> dict[str, Info]:
    """Of part of the pairs, for a loss that measures by itself."""
    if isinstance(loss, losses.AngularLoss):
        a1, p, _, _ = lmu.convert_to_pairs(indices, labels, row_labels)
        some = a1.new_zeros(1)  # it takes negatives by their labels, and asks only whether any are listed
        indices = a1, p, some, some
    return dict(loss.compute_loss(anchors, labels, indices, rows, row_labels))
