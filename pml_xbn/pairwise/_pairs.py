"""Pairs of anchors and rows, and PML's tuples of them: pairs ``(a1, p, a2, n)`` or triplets ``(a, p, n)``."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from ._reductions import OverRows
from ._triplets import Runs, listed

IndicesTuple = tuple[Tensor, ...]


class Pairs(NamedTuple):
    """Pairs of anchors and rows that have been chosen, or triplets.

    Of pairs, a loss of triplets combines all positives of an anchor with all its negatives.
    """

    positive: Tensor  # (a, n), bool, or how often each pair is listed or part of a triplet
    negative: Tensor
    labels: Tensor  # (a,), of the anchors
    row_labels: Tensor  # (n,)
    own_rows: Tensor | None  # (a,), rows of the anchors' own copies
    over_rows: OverRows
    triplets: Runs | IndicesTuple | None = None  # three index tensors, or runs; None: pairs
    num_pairs: list[int] | None = None  # how many are positive and negative; None: not counted

    def listed(self, lists: IndicesTuple) -> Pairs:
        """Returns the pairs, four index tensors, or triplets, three of them, in the place of these."""
        is_of_triplets = len(lists) == 3
        counts = []
        for places in (lists[:2], lists[::2] if is_of_triplets else lists[2:]):
            count = torch.zeros_like(self.positive, dtype=torch.int32)
            counts.append(count.index_put_(places, count.new_ones(()), accumulate=True))
        positive, negative = counts
        triplets = lists if is_of_triplets else None
        return self._replace(positive=positive, negative=negative, triplets=triplets, num_pairs=None)

    def lists(self) -> IndicesTuple:
        """Returns index tensors as PML's miners do, four of pairs or three of triplets."""
        if isinstance(self.triplets, Runs):
            return self.triplets.lists()
        return self.triplets or (*listed(self.positive), *listed(self.negative))

    def and_user_pairs(self, user_pairs: IndicesTuple) -> Pairs:
        """Returns these pairs, and those that the caller has given besides."""
        if self.triplets is not None:
            return self.listed(appended(self.lists(), user_pairs, self.labels))
        also = self.listed(lmu.convert_to_pairs(user_pairs, self.labels))
        positive, negative = also.positive + self.positive, also.negative + self.negative
        return also._replace(positive=positive, negative=negative)

    def masks(self) -> tuple[Tensor, Tensor]:
        """Returns which pairs are positive and which negative, ``(a, n)`` bool."""
        return self.positive.bool(), self.negative.bool()

    def at(self, anchors: slice) -> Pairs:
        """Returns the pairs of some anchors, not of triplets that are listed."""
        return self._replace(
            positive=self.positive[anchors],
            negative=self.negative[anchors],
            labels=self.labels[anchors],
            own_rows=None if self.own_rows is None else self.own_rows[anchors],
            triplets=None if self.triplets is None else Runs(*(x[anchors] for x in self.triplets)),
        )


def similarities(distance: Any, mat: Tensor) -> Tensor:
    """Returns what the distance measured, with a sign by which it grows where vectors become alike."""
    return mat if distance.is_inverted else -mat


def mapped(user_pairs: IndicesTuple, rows: Tensor) -> IndicesTuple:
    """Returns pairs or triplets whose positives and negatives number ``rows``, not what ``rows`` number."""
    is_anchor = (True, False, False) if len(user_pairs) == 3 else (True, False, True, False)
    indices = (x.to(rows.device, torch.int64) for x in user_pairs)
    return tuple(x if anchor else rows[x] for x, anchor in zip(indices, is_anchor, strict=True))


def appended(indices: IndicesTuple, user_pairs: IndicesTuple, labels: Tensor) -> IndicesTuple:
    """Returns ``indices`` followed by ``user_pairs``, as triplets or pairs, whichever ``indices`` are.

    Args:
        labels: of the batch, ``(b,)``.
    """
    convert = lmu.convert_to_triplets if len(indices) == 3 else lmu.convert_to_pairs
    user_pairs = convert(user_pairs, labels)
    return tuple(torch.cat([a, b.to(a.device)]) for a, b in zip(indices, user_pairs, strict=True))


def drop_own_rows(indices: IndicesTuple, own_rows: Tensor) -> IndicesTuple:
    """Returns the pairs or triplets without those of an anchor and its own row."""
    left: list[Tensor] = []
    for anchors, *rows in [indices] if len(indices) == 3 else [indices[:2], indices[2:]]:
        keep = (torch.stack(rows) != own_rows[anchors]).all(dim=0)
        left += [x[keep] for x in (anchors, *rows)]
    return tuple(left)
