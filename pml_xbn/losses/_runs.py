"""Triplets by how much farther from the anchor the negative is than the positive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from pytorch_metric_learning.distances import CosineSimilarity
from torch import Tensor

from ._cosines import is_of_cosines
from ._counting import Bounds, Order, counts_within, just_above
from ._sums import num_at_once
from ._triplets import Unlisted


@dataclass(frozen=True, eq=False)
class Runs(Unlisted):
    """Triplets with a difference between two numbers: in the order of distance, runs of negatives.

    Attributes:
        distance: that of the miner.
        mat: :func:`apartness` by it, ``(a, n)``.
        order: of the matrix.
        low, high: the difference is more than the one, and at most the other; they may be infinite.
    """

    distance: Any
    mat: Tensor
    order: Order
    low: float
    high: float

    def of_anchors(self, anchors: slice) -> Runs:
        mat, positive, negative = self.mat[anchors], self.positive[anchors], self.negative[anchors]
        order = self.order.of_anchors(anchors)
        return replace(self, mat=mat, order=order, positive=positive, negative=negative)

    def are_chosen(self, anchor: int, positives: Tensor, negatives: Tensor) -> Tensor:
        lower, upper = self._bounds(self.mat[anchor, positives].unsqueeze(1))
        mat = self.mat[anchor, negatives]
        return mat < upper if lower is None else (lower <= mat) & (mat < upper)

    def counts(self) -> tuple[Tensor, Tensor]:
        """How many triplets each positive and each negative pair is part of, ``(a, n)``, int32."""
        positive, negative = (torch.empty_like(self.mat, dtype=torch.int32) for _ in range(2))
        at_once = num_at_once(self.mat, self.mat.shape[1])
        for first in range(0, len(self.mat), at_once):
            anchors = slice(first, first + at_once)
            part = self.of_anchors(anchors)
            positive[anchors], negative[anchors] = part._counts_within(part._bounds(part.mat))
        return positive, negative

    def counts_within(self, bounds: Bounds, mat: Tensor, distance: Any) -> tuple[Tensor, Tensor] | None:
        if not torch.equal(mat, self.mat):
            if not (is_of_cosines(distance) and is_of_cosines(self.distance)):
                return None  # the order may be another one
            if not torch.allclose(_as_measured(mat, distance, self.distance), self.mat, atol=0.01):
                return None  # as vectors of zeros make it
            bounds = bounds.map(lambda numbers: _as_measured(numbers, distance, self.distance))
        return self._counts_within(bounds.and_within(self._bounds(self.mat)))

    def _counts_within(self, bounds: Bounds) -> tuple[Tensor, Tensor]:
        return counts_within(bounds, self.order, self.positive, self.negative)

    def _bounds(self, of_positives: Tensor) -> Bounds:
        """Of the negatives that go with positives of this apartness."""
        lower = None if self.low == -torch.inf else just_above(of_positives + self.low)
        return Bounds(lower, just_above(of_positives + self.high))


def apartness(distance: Any, mat: Tensor) -> Tensor:
    """What the distance measured, with a sign by which it grows where vectors come apart."""
    return -mat if distance.is_inverted else mat


def _as_measured(apartness: Tensor, distance: Any, other: Any) -> Tensor:
    """The same by another distance, both of cosines."""
    if not isinstance(distance, CosineSimilarity):
        apartness = apartness.clamp_min(0) ** (2 / distance.power) / 2 - 1  # |u - v|² = 2 - 2 u·v
    if not isinstance(other, CosineSimilarity):
        apartness = (2 + 2 * apartness).clamp_min(0) ** (other.power / 2)
    return apartness
