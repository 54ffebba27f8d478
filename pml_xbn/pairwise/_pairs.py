"""Pairs of anchors and rows, as masks or counts, and as PML lists them.

PML lists pairs and triplets as index tensors, four of pairs or three of triplets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from .._tracing import is_in_compiled_step, number_if_readable
from ._ranges import Ranges, listed
from ._reductions import AllPairs, are_self_pairs, total

# Several matrices of that size are to fit into a CPU's cache.
_PAIRS_AT_ONCE = {"cpu": 2**19, "gpu": 2**24}


class Pairs(NamedTuple):
    """Pairs of anchors and rows that have been chosen, or triplets."""

    positive: Tensor  # (a, n), bool, or how often each pair is listed or part of a triplet
    labels: Tensor  # (a,), of the anchors
    row_labels: Tensor  # (n,)
    self_pairs: Tensor | None = None  # (a,), rows of the anchors' own copies
    is_row: Tensor | None = None  # (n,), bool, which rows are occupied; None: all
    num_occupied: Tensor | int | None = None  # how many rows are, where that is known; None: all
    first_row: int = 0  # the index of the first row, where these are a part of all rows
    triplets: Ranges | IndicesTuple | None = None  # ranges, or index tensors; None: pairs, all combined
    num_pairs: Sequence[Tensor | int] | None = None  # how many are positive and negative; None: not counted
    are_all: bool = False  # whether these are all pairs with all rows
    chosen_negative: Tensor | None = None  # as positive; None: all of other labels

    @classmethod
    def all(
        cls,
        labels: Tensor,
        row_labels: Tensor,
        self_pairs: Tensor | None = None,
        is_row: Tensor | None = None,
        num_occupied: Tensor | int | None = None,
        first_row: int | None = None,
    ) -> Pairs:
        """Returns all pairs of anchors and occupied rows but those of an anchor and its own copy.

        Args:
            labels: ``(a,)``.
            row_labels: ``(n,)``.
            self_pairs: ``(a,)``, the indices of the anchors' own copies.
            is_row: ``(n,)``, which rows are occupied.
            num_occupied: how many are.
            first_row: the index of the first of the n rows, if they are a part of all.
        """
        positive = labels.unsqueeze(1) == row_labels
        if is_row is not None:
            positive = positive & is_row
        if self_pairs is not None:
            positive = without_self_pairs(positive, self_pairs, first_row)
        are_all = first_row is None
        return cls(
            positive, labels, row_labels, self_pairs, is_row, num_occupied, first_row or 0, are_all=are_all
        )

    @property
    def negative(self) -> Tensor:
        """Which pairs are negative, ``(a, n)`` bool, or how often each is, as ``positive``."""
        # A loss that needs none does not make a matrix of them.
        if self.chosen_negative is not None:
            return self.chosen_negative
        negative = self.labels.unsqueeze(1) != self.row_labels
        return negative if self.is_row is None else negative & self.is_row

    @property
    def counts(self) -> Sequence[Tensor | int]:
        """How many pairs are positive, and how many are negative."""
        if self.num_pairs is not None:
            return self.num_pairs
        num_positive, (num_anchors, num_rows) = number_if_readable(total(self.positive)), self.positive.shape
        if not self.are_all:
            return num_positive, total(self.negative)
        num_others = num_rows if self.num_occupied is None else self.num_occupied
        if self.self_pairs is not None:
            num_others = num_others - 1
        return num_positive, num_anchors * num_others - num_positive

    def of_both(self) -> Tensor | AllPairs:
        """Returns which pairs are positive or negative."""
        if self.are_all:
            return AllPairs(self.self_pairs, self.is_row)
        positive, negative = self.masks()
        return positive | negative

    def choose(
        self, positive: Tensor, negative: Tensor, triplets: Ranges | IndicesTuple | None = None
    ) -> Pairs:
        """Returns some of these pairs."""
        return self._replace(positive=positive, chosen_negative=negative, triplets=triplets, are_all=False)

    def of_same_label(self) -> Tensor:
        """Returns which anchors and rows have the same label, ``(a, n)`` bool, with own copies."""
        same = self.labels.unsqueeze(1) == self.row_labels
        return same if self.is_row is None else same & self.is_row

    def listed(self, lists: IndicesTuple) -> Pairs:
        """Returns listed pairs, four index tensors, or triplets, three of them, in place of these."""
        is_of_triplets = len(lists) == 3
        counts = []
        for indices in (lists[:2], lists[::2] if is_of_triplets else lists[2:]):
            count = torch.zeros_like(self.positive, dtype=torch.int32)
            counts.append(count.index_put_(indices, count.new_ones(()), accumulate=True))
        positive, negative = counts
        return self.choose(positive, negative, lists if is_of_triplets else None)._replace(num_pairs=None)

    def lists(self) -> IndicesTuple:
        """Returns index tensors as PML's miners do, four of pairs or three of triplets."""
        if isinstance(self.triplets, Ranges):
            return self.triplets.lists()
        return self.triplets or (*listed(self.positive), *listed(self.negative))

    def and_user_pairs(self, user_pairs: IndicesTuple) -> Pairs:
        """Returns these pairs, and those that the caller has given besides."""
        if self.triplets is not None:
            return self.listed(appended(self.lists(), user_pairs, self.labels))
        also = self.listed(lmu.convert_to_pairs(user_pairs, self.labels))
        positive, negative = also.positive + self.positive, also.negative + self.negative
        return also._replace(positive=positive, chosen_negative=negative)

    def masks(self) -> tuple[Tensor, Tensor]:
        """Returns which pairs are positive and which negative, ``(a, n)`` bool."""
        return self.positive.bool(), self.negative.bool()

    def at(self, anchors: slice) -> Pairs:
        """Returns the pairs of some anchors, not of triplets that are listed."""
        return self._replace(
            positive=self.positive[anchors],
            chosen_negative=None if self.chosen_negative is None else self.chosen_negative[anchors],
            labels=self.labels[anchors],
            self_pairs=None if self.self_pairs is None else self.self_pairs[anchors],
            triplets=self.triplets.at(anchors) if isinstance(self.triplets, Ranges) else None,
        )


def without_self_pairs(mask: Tensor, self_pairs: Tensor, first_row: int | None = None) -> Tensor:
    """Returns a mask of pairs ``(a, n)`` without those of an anchor and its own copy; it may overwrite it.

    Args:
        mask: of pairs.
        self_pairs: the indices of the anchors' own copies, ``(a,)``.
        first_row: the index of the first of the n rows, where they are a part of all.
    """
    if first_row is None:
        if is_in_compiled_step():  # which fuses a comparison, and not a scatter
            return mask & ~are_self_pairs(self_pairs, mask)
        return mask.scatter_(1, self_pairs.unsqueeze(1), False)
    if mask.shape[1] == 0:
        return mask
    columns, is_here = _columns_of(self_pairs, first_row, mask)
    return mask.scatter_(1, columns, mask.gather(1, columns) & ~is_here)


def only(rows: Tensor, first_row: int, like: Tensor) -> Tensor:
    """Returns a mask ``(a, n)`` of one row per anchor, if it is among these rows.

    Args:
        rows: the index of each anchor's row, ``(a,)``; -1: none.
        first_row: the index of the first of the n rows.
        like: another mask, of the same shape.
    """
    mask = torch.zeros_like(like)
    return mask if like.shape[1] == 0 else mask.scatter_(1, *_columns_of(rows, first_row, like))


def _columns_of(rows: Tensor, first_row: int, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the columns of rows in a mask ``(a, n)``, and whether they are among these, both ``(a, 1)``."""
    columns = (rows - first_row).unsqueeze(1)
    within = columns.clamp(0, mask.shape[1] - 1)
    return within, within == columns


def similarities(distance: Any, mat: Tensor) -> Tensor:
    """Returns the matrix with a sign by which it is larger for closer vectors."""
    return mat if distance.is_inverted else -mat


def anchors_at_once(num_rows: int, device: torch.device) -> int:
    """Returns for how many anchors a loss is computed at once."""
    return max(1, _PAIRS_AT_ONCE["cpu" if device.type == "cpu" else "gpu"] // max(1, num_rows))


IndicesTuple = tuple[Tensor, ...]


def mapped(user_pairs: IndicesTuple, rows: Tensor) -> IndicesTuple:
    """Returns pairs or triplets of a batch with ``rows[i]`` in place of each positive or negative ``i``."""
    is_anchor = (True, False, False) if len(user_pairs) == 3 else (True, False, True, False)
    indices = (x.to(rows.device, torch.int64) for x in user_pairs)
    return tuple(x if anchor else rows[x] for x, anchor in zip(indices, is_anchor, strict=True))


def appended(indices: IndicesTuple, user_pairs: IndicesTuple, labels: Tensor) -> IndicesTuple:
    """Returns ``indices`` and behind them ``user_pairs`` of the batch, as triplets if the first are some."""
    convert = lmu.convert_to_triplets if len(indices) == 3 else lmu.convert_to_pairs
    user_pairs = convert(user_pairs, labels)
    return tuple(torch.cat([a, b.to(a.device)]) for a, b in zip(indices, user_pairs, strict=True))


def drop_self_pairs(indices: IndicesTuple, self_pairs: Tensor) -> IndicesTuple:
    """Returns the pairs or triplets without those of an anchor and its own copy."""
    left: list[Tensor] = []
    for anchors, *rows in [indices] if len(indices) == 3 else [indices[:2], indices[2:]]:
        keep = (torch.stack(rows) != self_pairs[anchors]).all(dim=0)
        left += [x[keep] for x in (anchors, *rows)]
    return tuple(left)
