"""Pairs as boolean masks instead of lists, for the losses and miners that turn lists into masks anyway."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

import torch
from pytorch_metric_learning.losses import GenericPairLoss, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import Tensor, nn

from . import anchor_slices


class PairMasks(NamedTuple):
    """Which of the anchors × rows are positive and which negative pairs, ``(a, n)`` each, bool."""

    positive: Tensor
    negative: Tensor


def are_enough(loss: nn.Module, miner: Any) -> bool:
    """Whether this loss with this miner gives the same value from masks.

    The loss has to scatter its index lists into masks by the methods of PML's base class, and the miner to
    be none or PML's own ``PairMarginMiner``, without statistics.
    """
    return (
        measures_once(loss)
        and type(loss).forward is GenericPairLoss.forward
        and type(loss).mat_based_loss is GenericPairLoss.mat_based_loss
        and loss.loss_method == loss.mat_based_loss
        and (miner is None or (type(miner) is PairMarginMiner and not miner.collect_stats))
    )


def measures_once(loss: nn.Module) -> TypeGuard[GenericPairLoss]:
    """Whether the loss asks its distance for one matrix, of anchors and rows, by PML's base class."""
    return isinstance(loss, GenericPairLoss) and type(loss).compute_loss is GenericPairLoss.compute_loss


def pair_masks(
    miner: PairMarginMiner | None,
    anchors: Tensor,
    labels: Tensor,
    rows: Tensor,
    row_labels: Tensor,
    own_rows: Tensor | None,
) -> PairMasks:
    """All pairs, or those that the miner would choose, without those of an anchor and its own row."""
    positive = labels.unsqueeze(1) == row_labels
    negative = ~positive
    if own_rows is not None:
        positive[torch.arange(len(own_rows), device=own_rows.device), own_rows] = False
    if miner is not None:
        with torch.no_grad():
            mat = miner.distance(anchors, rows)
        if miner.distance.is_inverted:
            positive &= mat < miner.pos_margin
            negative &= mat > miner.neg_margin
        else:
            positive &= mat > miner.pos_margin
            negative &= mat < miner.neg_margin
    return PairMasks(positive, negative)


def loss_of(
    loss: GenericPairLoss, masks: PairMasks, anchors: Tensor, labels: Tensor, rows: Tensor, row_labels: Tensor
) -> Tensor:
    """The loss of these pairs; PML's base class is left out of the way between distance and loss."""
    num_pairs = torch.stack([mask.sum() for mask in masks]).tolist()

    def from_masks(mat: Tensor, _: Any) -> Any:
        return terms_of(loss, mat, masks, num_pairs)

    from_lists = loss.loss_method
    loss.loss_method = from_masks
    try:
        # PML looks at the lengths of the lists alone, to see whether there are pairs at all.
        num_positive, num_negative = num_pairs
        lengths = tuple(range(n) for n in (num_positive, num_positive, num_negative, num_negative))
        value: Tensor = loss(anchors, labels, lengths, rows, row_labels)
    finally:
        loss.loss_method = from_lists
    return value


def terms_of(
    loss: GenericPairLoss, mat: Tensor, masks: PairMasks, num_pairs: list[int], is_part: bool = False
) -> dict[str, Any]:
    """What the loss of these pairs hands its reducer.

    Args:
        mat: distances, ``(a, n)``.
        num_pairs: how many the masks choose.
        is_part: of more pairs elsewhere, so that a lack of one kind of pair here means nothing.
    """
    has_both = all(num_pairs)
    if (has_both or is_part) and anchor_slices.are_worth_it(loss, mat):
        return anchor_slices.sliced_losses(loss, mat, *masks)
    positive, negative = (mask.to(mat.dtype) for mask in masks)
    if has_both or not (is_part and isinstance(loss, SupConLoss)):
        return dict(loss._compute_loss(mat, positive, negative))
    # SupConLoss asks whether there are pairs of both kinds. A last row that is no anchor has them.
    one_pair = torch.zeros_like(mat[:1])
    one_pair[0, 0] = 1
    padded = (torch.cat(pair) for pair in ((mat, mat[:1]), (positive, one_pair), (negative, one_pair)))
    terms = loss._compute_loss(*padded)["loss"]
    return {"loss": {**terms, "losses": terms["losses"][:-1], "indices": terms["indices"][:-1]}}
