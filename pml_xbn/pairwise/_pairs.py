"""Pairs of anchors and rows, and what a loss of PML is computed from."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from ._indices import IndicesTuple, appended
from ._over_rows import OverRows
from ._triplets import Window


class Pairs(NamedTuple):
    """Pairs of anchors and rows that have been chosen.

    Attributes:
        positive, negative: ``(a, n)``, bool, or integers that say how often each pair counts: as often as it
            was listed, or is part of a triplet.
        labels: of the anchors, ``(a,)``.
        row_labels: ``(n,)``.
        own_rows: row of every anchor's own copy, ``(a,)``; None where it has none.
        over_rows: reductions over the rows.
        triplets: which positives of an anchor go with which of its negatives, as three index tensors.
        window: the same, unlisted. If neither is there, a loss of triplets combines all with all.
        is_all: whether these are all pairs.
        numbers: how many positive and negative pairs there are; None: not counted.
    """

    positive: Tensor
    negative: Tensor
    labels: Tensor
    row_labels: Tensor
    own_rows: Tensor | None
    over_rows: OverRows
    triplets: IndicesTuple | None = None
    window: Window | None = None
    is_all: bool = False
    numbers: tuple[int, int] | None = None

    @classmethod
    def all(
        cls, labels: Tensor, row_labels: Tensor, own_rows: Tensor | None, over_rows: OverRows | None = None
    ) -> Pairs:
        """Returns every pair but those of an anchor and its own row.

        Example:
            >>> Pairs.all(torch.tensor([4, 7]), torch.tensor([4, 4, 7]), torch.tensor([1, 2])).lists()
            (tensor([0]), tensor([0]), tensor([0, 1, 1]), tensor([2, 0, 1]))
        """
        over_rows = OverRows() if over_rows is None else over_rows
        positive = labels.unsqueeze(1) == row_labels
        negative = ~positive
        if own_rows is not None:
            positive = over_rows.leave_out(positive, own_rows)
        return cls(positive, negative, labels, row_labels, own_rows, over_rows, is_all=True)

    def listed(self, lists: IndicesTuple) -> Pairs:
        """Returns the pairs, four index tensors, or triplets, three of them, in the place of these."""
        halves = (lists[:2], lists[::2]) if len(lists) == 3 else (lists[:2], lists[2:])
        counts = [torch.zeros_like(self.positive, dtype=torch.int32) for _ in halves]
        for count, places in zip(counts, halves, strict=True):
            count.index_put_(places, count.new_ones(()), accumulate=True)
        triplets = lists if len(lists) == 3 else None
        return self._replace(
            positive=counts[0],
            negative=counts[1],
            triplets=triplets,
            window=None,
            is_all=False,
            numbers=(len(lists[0]), len(lists[-1])),
        )

    def and_given(self, given: IndicesTuple) -> Pairs:
        """Returns these pairs, and those that the caller has given besides."""
        if self.is_of_triplets:
            return self.listed(appended(self.lists(), given, self.labels))
        also = self.listed(lmu.convert_to_pairs(given, self.labels))
        positive, negative = also.positive + self.positive, also.negative + self.negative
        return also._replace(positive=positive, negative=negative, numbers=None)

    def lists(self) -> IndicesTuple:
        """Returns index tensors as PML's miners do, four of pairs or three of triplets."""
        if self.window is not None:
            return self.window.lists()
        return self.triplets or (*listed(self.positive), *listed(self.negative))

    def masks(self) -> tuple[Tensor, Tensor]:
        """Returns which pairs are positive and which negative, ``(a, n)`` bool."""
        if self.positive.dtype == torch.bool:
            return self.positive, self.negative
        return self.positive > 0, self.negative > 0

    def in_triplets(self) -> tuple[Tensor, Tensor]:
        """Returns how many triplets each positive and each negative pair is part of, ``(a, n)``."""
        if self.is_of_triplets:
            return self.positive, self.negative
        num_positive, num_negative = (self.over_rows.count(x).unsqueeze(1) for x in self[:2])
        return self.positive * num_negative, self.negative * num_positive

    @property
    def is_of_triplets(self) -> bool:
        """Whether triplets have been chosen, and not pairs."""
        return self.triplets is not None or self.window is not None

    def counted(self) -> Pairs:
        """Returns these pairs with their numbers, for which a GPU has to wait."""
        if self.numbers is not None:
            return self
        num_positive, num_negative = torch.stack([self.over_rows.total(x) for x in self[:2]]).tolist()
        return self._replace(numbers=(num_positive, num_negative))

    def at(self, anchors: slice) -> Pairs:
        """Returns the pairs of some anchors, not of triplets that are listed."""
        return self._replace(
            positive=self.positive[anchors],
            negative=self.negative[anchors],
            labels=self.labels[anchors],
            own_rows=None if self.own_rows is None else self.own_rows[anchors],
            window=None if self.window is None else self.window.at(anchors),
        )


def similarities(distance: Any, mat: Tensor) -> Tensor:
    """Returns what the distance measured, with a sign by which it grows where vectors become alike."""
    return mat if distance.is_inverted else -mat


def listed(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Returns anchors and rows of pairs, each as often as it counts."""
    places = counts.nonzero()
    if counts.dtype != torch.bool:
        places = places.repeat_interleave(counts[counts > 0], dim=0)
    anchors, rows = places.unbind(dim=1)
    return anchors, rows
