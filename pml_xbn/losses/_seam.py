"""The one place where a loss of PML is computed against stored rows."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from . import _terms
from ._cosines import Distances, StoredRows, is_of_cosines
from ._masks import PairMasks, can_choose, masks_of, pair_masks
from ._pairs import IndicesTuple, Miner, all_pairs, appended, mined
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
    miner: Miner | None,
    anchors: Tensor,
    anchor_labels: Tensor,
    rows: StoredRows,
    row_labels: Tensor,
    own_rows: Tensor | None = None,
    given: IndicesTuple | None = None,
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
    pairs = _chosen(loss, miner, distances, anchor_labels, row_labels, own_rows, given)
    if summing is not None:
        summing.num_pairs = pairs.numbers
    if summing is None and not _reads_matrix(loss):
        value: Tensor = loss(anchors, anchor_labels, pairs.lists, distances.row_tensor, row_labels)
        return value
    return _call_twin(loss, distances, pairs, anchor_labels, row_labels, summing)


def chosen_pairs(
    miner: Miner | None,
    distances: Distances,
    labels: Tensor,
    row_labels: Tensor,
    own_rows: Tensor | None,
) -> IndicesTuple:
    """What the miner chooses, or all pairs, without those of an anchor and its own row."""
    if miner is None:
        return all_pairs(labels, row_labels, own_rows)
    return mined(miner, distances, labels, row_labels, own_rows)


class _Pairs(NamedTuple):
    lists: IndicesTuple | None
    masks: PairMasks | None
    numbers: list[int]  # positive and negative ones


def _chosen(
    loss: Any,
    miner: Any,
    distances: Distances,
    labels: Tensor,
    row_labels: Tensor,
    own_rows: Tensor | None,
    given: IndicesTuple | None,
) -> _Pairs:
    """As lists, or as masks that are made of these or spare us these."""
    is_of_masks = _reads_matrix(loss) and type(loss) in _OF_MASKS
    if is_of_masks and given is None and can_choose(miner):
        masks = pair_masks(miner, distances, labels, row_labels, own_rows)
        numbers = torch.stack([mask.sum() for mask in masks]).tolist()
        if miner is not None:
            miner.output_assertion([range(number) for number in numbers for _ in range(2)])  # counts them
        return _Pairs(masks.lists() if has_hooks(loss) else None, masks, numbers)
    lists = chosen_pairs(miner, distances, labels, row_labels, own_rows)
    if given is not None:
        lists = appended(lists, given, labels)
    a1, p, a2, n = lmu.convert_to_pairs(lists, labels, row_labels)
    scattered = masks_of((a1, p, a2, n), (len(labels), len(row_labels))) if is_of_masks else None
    return _Pairs(lists, scattered, [len(a1), len(a2)])


def _reads_matrix(loss: Any) -> bool:
    """Whether the loss is PML's own, and looks up its pairs in one matrix of distances."""
    by_masks, by_lists = type(loss) in _OF_MASKS, type(loss) in _OF_LISTS
    if not (by_masks or by_lists) or not is_as_built(loss):
        return False
    return bool(loss.loss_method == (loss.mat_based_loss if by_masks else loss.pair_based_loss))


def _call_twin(
    loss: Any,
    distances: Distances,
    pairs: _Pairs,
    anchor_labels: Tensor,
    row_labels: Tensor,
    summing: Summing | None,
) -> Tensor:
    """Calls the loss but for what it computes before its reducer."""
    is_part = summing is not None
    is_read = _reads_matrix(loss) and is_of_cosines(loss.distance)
    rows = distances.placeholder if is_read and not has_hooks(loss) else distances.row_tensor

    def terms(embeddings: Tensor, labels: Tensor, lists: Any, ref_emb: Tensor, ref_labels: Tensor) -> Any:
        if lists is not pairs.lists:  # but what a user's hook has put in their place
            return type(loss).compute_loss(twin, embeddings, labels, lists, ref_emb, ref_labels)
        if not _reads_matrix(loss):
            return _terms.of_loss(loss, lists, embeddings, labels, ref_emb, ref_labels)
        if not is_part and max(pairs.numbers) <= 1:
            return loss.zero_losses()
        mat = twin.distance(embeddings, ref_emb)
        if pairs.masks is not None:
            return _terms.of_masks(loss, mat, pairs.masks, pairs.numbers, is_part)
        return _terms.of_lists(loss, mat, lmu.convert_to_pairs(lists, labels, ref_labels), is_part)

    ours: dict[str, Any] = {"compute_loss": terms}
    if is_read:
        ours["distance"] = distances.distance(loss.distance, rows)
    if summing is not None:
        ours["reducer"] = summing
    twin: Any = twin_of(loss, **ours)
    value: Tensor = twin(distances.anchors, anchor_labels, pairs.lists, rows, row_labels)
    return value
