"""Which pairs of anchors and rows a loss is of."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._indices import IndicesTuple
from ._sums import num_at_once
from ._triplets import Listed, Unlisted


class Choice(NamedTuple):
    """Pairs of anchors and rows, or triplets.

    Attributes:
        positive, negative: ``(a, n)``, bool, or integers that say how often each pair counts: as often as it
            was listed, or is part of a triplet.
        triplets: which positives of an anchor go with which of its negatives; None: pairs were chosen, and a
            loss of triplets combines all with all.
    """

    positive: Tensor
    negative: Tensor
    triplets: Listed | Unlisted | None = None

    @classmethod
    def of_lists(cls, lists: IndicesTuple, shape: tuple[int, int]) -> Choice:
        """Of index tensors as PML's miners return them: three of triplets or four of pairs."""
        is_of_triplets = len(lists) == 3
        pairs = (lists[:2], lists[::2]) if is_of_triplets else (lists[:2], lists[2:])
        counts = [torch.zeros(shape, dtype=torch.int32, device=lists[0].device) for _ in pairs]
        for count, places in zip(counts, pairs, strict=True):
            count.index_put_(places, count.new_ones(()), accumulate=True)
        positive, negative = counts
        return cls(positive, negative, Listed(*lists) if is_of_triplets else None)

    def of_anchors(self, anchors: slice) -> Choice:
        """The part of some anchors."""
        triplets = None if self.triplets is None else self.triplets.of_anchors(anchors)
        return Choice(self.positive[anchors], self.negative[anchors], triplets)

    def in_triplets(self) -> tuple[Tensor, Tensor]:
        """How many triplets each positive and each negative pair is part of, ``(a, n)``, int32."""
        if self.triplets is not None:
            return self.positive, self.negative
        num_positive, num_negative = (x.sum(dim=1, keepdim=True, dtype=torch.int32) for x in self[:2])
        return self.positive * num_negative, self.negative * num_positive

    def num_pairs(self) -> list[int]:
        """How many positive and negative pairs there are."""
        if self.triplets is not None:  # each is of one positive and one negative pair
            return [int(_total(self.positive))] * 2
        numbers: list[int] = torch.stack([_total(self.positive), _total(self.negative)]).tolist()
        return numbers

    def lists(self) -> IndicesTuple:
        """Index tensors as PML's miners return them."""
        if self.triplets is not None:
            return self.triplets.lists()
        return *listed(self.positive), *listed(self.negative)


def listed(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Anchors and rows of pairs, each as often as it counts."""
    places = counts.nonzero()
    if counts.dtype != torch.bool:
        places = places.repeat_interleave(counts[counts > 0], dim=0)
    anchors, rows = places.unbind(dim=1)
    return anchors, rows


def all_pairs(labels: Tensor, row_labels: Tensor, own_rows: Tensor | None) -> Choice:
    """Every pair but those of an anchor and its own row.

    Args:
        labels: of the anchors, ``(a,)``.
        row_labels: ``(n,)``.
        own_rows: row of every anchor's own copy, ``(a,)``, or None where it has none.

    Example:
        >>> all_pairs(torch.tensor([4, 7]), torch.tensor([4, 4, 7]), torch.tensor([1, 2])).lists()
        (tensor([0]), tensor([0]), tensor([0, 1, 1]), tensor([2, 0, 1]))
    """
    positive = labels.unsqueeze(1) == row_labels
    negative = ~positive
    if own_rows is not None:
        positive[torch.arange(len(own_rows), device=own_rows.device), own_rows] = False
    return Choice(positive, negative)


def _total(counts: Tensor) -> Tensor:
    # A CPU sums bool and int32 by way of a copy in int64, which is cheap if it is small.
    if counts.dtype == torch.bool:
        return counts.count_nonzero()
    return torch.stack([part.sum() for part in counts.split(num_at_once(counts, counts.shape[1]))]).sum()
