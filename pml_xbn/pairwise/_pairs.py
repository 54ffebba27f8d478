"""Pairs of anchors and rows, as masks or counts."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from ._index_tensors import IndicesTuple, appended, listed
from ._runs import Runs

# Several matrices of that size are to fit into a CPU's cache.
_PAIRS_AT_ONCE = {"cpu": 2**19, "gpu": 2**24}


class Pairs(NamedTuple):
    """Pairs of anchors and rows that have been chosen, or triplets."""

    positive: Tensor  # (a, n), bool, or how often each pair is listed or part of a triplet
    negative: Tensor
    labels: Tensor  # (a,), of the anchors
    row_labels: Tensor  # (n,)
    own_rows: Tensor | None  # (a,), rows of the anchors' own copies
    first: int = 0  # the number of the first row
    triplets: Runs | IndicesTuple | None = None  # index tensors, or runs; None: pairs, all combined
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


def leave_out(mask: Tensor, own_rows: Tensor, first: int | None = None) -> Tensor:
    """Returns the mask ``(a, n)``, in place, without the pairs of anchors and their own rows ``(a,)``.

    Args:
        mask: of pairs.
        own_rows: numbers of rows.
        first: the number of the first of the n rows, where they are a part of all.
    """
    if first is None:
        return mask.scatter_(1, own_rows.unsqueeze(1), False)
    if mask.shape[1] == 0:
        return mask
    columns, is_here = _columns_of(own_rows, first, mask)
    return mask.scatter_(1, columns, mask.gather(1, columns) & ~is_here)


def only(rows: Tensor, first: int, like: Tensor) -> Tensor:
    """Returns a mask like another ``(a, n)`` of every anchor's row ``(a,)``, -1 for none, if it is here."""
    mask = torch.zeros_like(like)
    return mask if like.shape[1] == 0 else mask.scatter_(1, *_columns_of(rows, first, like))


def _columns_of(rows: Tensor, first: int, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the columns of rows in a mask ``(a, n)``, and whether they are among these, both ``(a, 1)``."""
    columns = (rows - first).unsqueeze(1)
    within = columns.clamp(0, mask.shape[1] - 1)
    return within, within == columns


def similarities(distance: Any, mat: Tensor) -> Tensor:
    """Returns what the distance measured, with a sign by which it grows where vectors become alike."""
    return mat if distance.is_inverted else -mat


def anchors_at_once(num_rows: int, device: torch.device) -> int:
    """Returns for how many anchors a loss is computed at once."""
    return max(1, _PAIRS_AT_ONCE["cpu" if device.type == "cpu" else "gpu"] // max(1, num_rows))
