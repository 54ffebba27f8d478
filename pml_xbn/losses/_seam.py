"""The one place where a loss of PML is computed against stored rows."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from ..adapters._rows import Rows
from . import _terms
from ._cosines import Distances, is_of_cosines
from ._masks import can_choose, masks_of, pair_masks
from ._pairs import IndicesTuple, appended, chosen_pairs
from ._terms import Info
from ._twins import has_hooks, is_as_built, twin_of

# PML's losses that ask their distance for one matrix, and scatter lists of pairs into masks of its shape ...
_OF_MASKS = (
    losses.CircleLoss,
    losses.GeneralizedLiftedStructureLoss,
    losses.MultiSimilarityLoss,
    losses.SupConLoss,
)
# ... or look listed pairs up in it.
_OF_LISTS = (
    losses.ContrastiveLoss,
    losses.IntraPairVarianceLoss,
    losses.LiftedStructureLoss,
    losses.NTXentLoss,
    losses.SignalToNoiseRatioContrastiveLoss,
    losses.TupletMarginLoss,
)


class Summing(Protocol):
    """Takes the place of the reducer of a loss of which this is a part."""

    num_pairs: list[int]  # positive and negative ones, set before the call

    def __call__(self, terms: dict[str, Info], anchors: Tensor, labels: Tensor) -> Tensor: ...


def loss_against(
    loss: Any,
    miner: Any,
    anchors: Tensor,
    anchor_labels: Tensor,
    rows: Rows,
    row_labels: Tensor,
    own_rows: Tensor | None = None,
    given: IndicesTuple | None = None,
    *,
    summing: Summing | None = None,
) -> Tensor:
    """The loss of these anchors against these rows.

    PML's own losses get their distances from one matrix of cosines, where it holds these. A loss or miner
    of the user's own is called with all rows. Nothing is changed in loss, miner or PML, but for what these
    note themselves.

    Args:
        loss: any that a memory supports.
        miner: chooses among the pairs; default all.
        anchors: ``(a, d)``, with gradient; a > 0.
        anchor_labels: ``(a,)``.
        rows: ``(n, d)``; n > 0.
        row_labels: ``(n,)``.
        own_rows: row of every anchor's own copy, ``(a,)``, which it is not compared with; None where it has
            none.
        given: pairs or triplets of anchors and rows besides.
        summing: called instead of the loss's reducer, with the terms of a part of the loss.
    """
    distances = Distances(anchors, rows)
    is_of_masks = _is_one_of(_OF_MASKS, loss, "mat_based_loss")
    is_of_lists = _is_one_of(_OF_LISTS, loss, "pair_based_loss")
    lists, masks = None, None
    if is_of_masks and given is None and can_choose(miner):
        masks = pair_masks(miner, distances, anchor_labels, row_labels, own_rows)
        num_pairs = torch.stack([mask.sum() for mask in masks]).tolist()
        if miner is not None:
            miner.output_assertion([range(number) for number in num_pairs for _ in range(2)])  # counts them
        if has_hooks(loss):
            lists = masks.lists()
    else:
        lists = chosen_pairs(miner, distances, anchor_labels, row_labels, own_rows)
        if given is not None:
            lists = appended(lists, given, anchor_labels)
        pairs = lmu.convert_to_pairs(lists, anchor_labels, row_labels)
        num_pairs = [len(pairs[0]), len(pairs[2])]
        if is_of_masks:
            masks = masks_of(pairs, (len(anchors), len(rows)))
            if hasattr(loss, "_assert_either_pos_or_neg"):  # since PML 2.9
                loss._assert_either_pos_or_neg(*masks)
    is_read = (is_of_masks or is_of_lists) and is_of_cosines(loss.distance)
    row_tensor = distances.placeholder if is_read and not has_hooks(loss) else distances.row_tensor
    distance = distances.distance(loss.distance, row_tensor) if is_read else loss.distance

    def terms(embeddings: Tensor, labels: Tensor, chosen: Any, ref_emb: Tensor, ref_labels: Tensor) -> Any:
        """What the loss computes before its reducer."""
        if chosen is not lists:  # but what a user's hook has put in their place
            measuring = twin_of(loss, distance=distance)
            return type(loss).compute_loss(measuring, embeddings, labels, chosen, ref_emb, ref_labels)
        if not (is_of_masks or is_of_lists):
            return _terms.of_loss(loss, embeddings, labels, chosen, ref_emb, ref_labels)
        if summing is None and max(num_pairs) <= 1:
            return loss.zero_losses()
        mat = distance(embeddings, ref_emb)
        if masks is not None:
            return _terms.of_masks(loss, mat, masks, num_pairs, is_part=summing is not None)
        return _terms.of_lists(loss, mat, pairs, is_part=summing is not None)

    # ``terms`` knows nothing of the twin, which knows it: a cycle would keep the matrices for long.
    if summing is not None:
        summing.num_pairs = num_pairs
        loss_of_terms = twin_of(loss, compute_loss=terms, reducer=summing)
    elif is_of_masks or is_of_lists:
        loss_of_terms = twin_of(loss, compute_loss=terms)
    else:
        loss_of_terms = loss
    value: Tensor = loss_of_terms(anchors, anchor_labels, lists, row_tensor, row_labels)
    return value


def _is_one_of(pmls: tuple[type, ...], loss: Any, method: str) -> bool:
    """Whether the loss is one of these, as PML has built it."""
    return type(loss) in pmls and is_as_built(loss) and loss.loss_method == getattr(loss, method)
