"""BatchEasyHardMiner (https://arxiv.org/abs/1904.04370), BatchHardMiner (https://arxiv.org/abs/1703.07737)."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from pytorch_metric_learning.miners import BatchEasyHardMiner, BatchHardMiner
from torch import Tensor

from .._choice import Choice
from .._triplets import Listed
from .candidates import Candidates


class _Picked(NamedTuple):
    """One row for every anchor.

    Attributes:
        similarities: to the anchor, ``(a,)``.
        rows: ``(a,)``.
        exist: whether the anchor has one, ``(a,)``.
    """

    similarities: Tensor
    rows: Tensor
    exist: Tensor


def batch_easy_hard(miner: BatchEasyHardMiner, candidates: Candidates) -> Choice:
    positives, negatives = _picked(miner, candidates)
    both = [picked.exist for picked in (positives, negatives) if picked is not None]

    def mask(picked: _Picked | None, pairs: Tensor) -> Tensor:
        if picked is None:
            return pairs
        exist = torch.stack(both).all(dim=0)
        return torch.zeros_like(pairs).scatter_(1, picked.rows.unsqueeze(1), exist.unsqueeze(1))

    return Choice(mask(positives, candidates.pairs.positive), mask(negatives, candidates.pairs.negative))


def batch_hard(miner: BatchHardMiner, candidates: Candidates) -> Choice:
    positive, negative, _ = batch_easy_hard(miner, candidates)
    # Of the same anchors, one of each.
    (anchors, positives), (_, negatives) = (mask.nonzero().unbind(dim=1) for mask in (positive, negative))
    return Choice(positive, negative, Listed(anchors, positives, negatives))


def _picked(miner: BatchEasyHardMiner, candidates: Candidates) -> tuple[_Picked | None, _Picked | None]:
    """Positives and negatives; None where all are taken."""
    mat, similarities = candidates.mat(miner), candidates.similarities(miner)
    positive, negative, _ = candidates.pairs
    if miner.allowed_pos_range is not None:
        positive = positive & _is_within(mat, *miner.allowed_pos_range)
    if miner.allowed_neg_range is not None:
        negative = negative & _is_within(mat, *miner.allowed_neg_range)
    of_positives = partial(_one_each, similarities, positive, miner.pos_strategy == miner.EASY)
    of_negatives = partial(_one_each, similarities, negative, miner.neg_strategy != miner.EASY)
    if miner.pos_strategy == miner.SEMIHARD:
        negatives = of_negatives()
        return of_positives(negatives.similarities), negatives
    positives = None if miner.pos_strategy == miner.ALL else of_positives()
    if miner.neg_strategy == miner.ALL:
        return positives, None
    if miner.neg_strategy == miner.SEMIHARD:
        assert positives is not None, "PML refuses all positives with semihard negatives"
        return positives, of_negatives(positives.similarities)
    return positives, of_negatives()


def _one_each(
    similarities: Tensor, pairs: Tensor, are_nearest: bool, beyond: Tensor | None = None
) -> _Picked:
    """The nearest row of every anchor, or the farthest, of those beyond a similarity."""
    if beyond is not None:
        limit = beyond.unsqueeze(1)
        pairs = pairs & ~(similarities >= limit if are_nearest else similarities <= limit)
    if are_nearest:
        values, rows = similarities.masked_fill(~pairs, -torch.inf).max(dim=1)
    else:
        values, rows = similarities.masked_fill(~pairs, torch.inf).min(dim=1)
    return _Picked(values, rows, pairs.gather(1, rows.unsqueeze(1)).squeeze(1))


def _is_within(mat: Tensor, low: float, high: float) -> Tensor:
    return (low <= mat) & (mat <= high)
