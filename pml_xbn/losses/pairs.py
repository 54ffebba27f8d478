"""Index tuples between a batch of anchors and the memory, never of an anchor with its own stored copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

IndicesTuple = tuple[Tensor, ...]
Miner = Callable[[Tensor, Tensor, Tensor, Tensor], IndicesTuple]


def all_pairs(labels: Tensor, ref_labels: Tensor, own_rows: Tensor | None) -> IndicesTuple:
    """Anchor-positive and anchor-negative indices of all pairs.

    Args:
        labels: of the anchors, ``(b,)``.
        ref_labels: of the memory, ``(n,)``.
        own_rows: row of every anchor's own copy in memory, ``(b,)``, or None where it has none.

    Example:
        >>> all_pairs(torch.tensor([4, 7]), torch.tensor([4, 4, 7]), torch.tensor([1, 2]))
        (tensor([0]), tensor([0]), tensor([0, 1, 1]), tensor([2, 0, 1]))
    """
    with _without_own_rows(own_rows):
        pairs: IndicesTuple = lmu.get_all_pairs_indices(labels, ref_labels)
    return pairs


def mined(
    miner: Miner,
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor,
    ref_labels: Tensor,
    own_rows: Tensor | None,
) -> IndicesTuple:
    """The miner's choice among pairs that hold no anchor's own copy.

    A miner that picks the easiest positive would else always pick that copy, at distance zero.
    """
    # MultiSimilarityMiner takes every pair that is not listed as positive for a negative, and the other
    # way round, so for it a pair that is neither has to be listed as both.
    as_both = isinstance(miner, MultiSimilarityMiner)
    with _without_own_rows(own_rows, as_both):
        indices = miner(embeddings, labels, ref_emb, ref_labels)
    return indices if own_rows is None else _drop_own_rows(indices, own_rows)


def joined(indices: IndicesTuple, given: IndicesTuple, labels: Tensor, rows: Tensor) -> IndicesTuple:
    """``indices`` followed by ``given``, whose positives and negatives number rows of the batch.

    Args:
        indices: three tensors (triplets) or four (pairs), from anchors to memory rows.
        given: likewise, but from the batch to itself; converted where the lengths differ.
        labels: of the batch, ``(b,)``.
        rows: memory row of every row of the batch, ``(b,)``.
    """
    if len(given) == 3 and len(indices) == 4:
        given = lmu.convert_to_pairs(given, labels)
    elif len(given) == 4 and len(indices) == 3:
        given = lmu.convert_to_triplets(given, labels)
    # Triplets are (anchor, positive, negative), pairs (anchor, positive, anchor, negative).
    is_anchor = (True, False, False) if len(given) == 3 else (True, False, True, False)
    given = tuple(
        x if anchor else rows[x.to(rows.device)] for x, anchor in zip(given, is_anchor, strict=True)
    )
    return tuple(torch.cat([a, b.to(a.device)]) for a, b in zip(indices, given, strict=True))


def _drop_own_rows(indices: IndicesTuple, own_rows: Tensor) -> IndicesTuple:
    """Takes out what a miner that lists its pairs by other means chose all the same."""
    if len(indices) == 3:
        anchors, positives, negatives = indices
        keep = (positives != own_rows[anchors]) & (negatives != own_rows[anchors])
        return anchors[keep], positives[keep], negatives[keep]
    anchors, positives, other_anchors, negatives = indices
    keep, keep_other = positives != own_rows[anchors], negatives != own_rows[other_anchors]
    return anchors[keep], positives[keep], other_anchors[keep_other], negatives[keep_other]


@contextmanager
def _without_own_rows(own_rows: Tensor | None, as_both: bool = False) -> Iterator[None]:
    """Within it, PML lists the pair of an anchor and its own copy as neither match nor difference.

    PML's losses and miners all list their pairs through one function, which can leave out the diagonal
    of a batch compared with itself but takes no other exception.
    """
    if own_rows is None:
        yield
        return
    list_pairs = lmu.get_matches_and_diffs

    def list_other_pairs(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        matches, diffs = list_pairs(labels, ref_labels)
        if ref_labels is not None:
            own_pairs = torch.arange(len(own_rows), device=own_rows.device), own_rows
            matches[own_pairs] = as_both
            diffs[own_pairs] = as_both
        return matches, diffs

    lmu.get_matches_and_diffs = list_other_pairs
    try:
        yield
    finally:
        lmu.get_matches_and_diffs = list_pairs
