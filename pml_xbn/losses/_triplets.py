"""Which positives of an anchor form triplets with which of its negatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.distances import CosineSimilarity
from torch import Tensor

from ._cosines import is_of_cosines
from ._counting import Bounds, counts_within, just_above
from ._indices import IndicesTuple
from ._sums import num_at_once


class Listed(NamedTuple):
    """Triplets one by one: the numbers of anchors, positives and negatives, ``(t,)`` each."""

    anchors: Tensor
    positives: Tensor
    negatives: Tensor

    def of_anchors(self, anchors: slice) -> Listed:
        """Those of some anchors, which are numbered anew."""
        keep = (anchors.start <= self.anchors) & (self.anchors < anchors.stop)
        return Listed(self.anchors[keep] - anchors.start, self.positives[keep], self.negatives[keep])

    def lists(self) -> IndicesTuple:
        return tuple(self)


class Runs(NamedTuple):
    """Triplets whose negative is farther away than the positive by more than ``low``, and at most ``high``.

    In the order of the distances, the negatives that go with a positive are a run.

    Attributes:
        distance: that of the miner.
        mat: :func:`apartness` by it, ``(a, n)``.
        positive, negative: the pairs that triplets are made of, ``(a, n)``, bool.
        low, high: of differences in apartness; may be infinite.
    """

    distance: Any
    mat: Tensor
    positive: Tensor
    negative: Tensor
    low: float
    high: float

    def of_anchors(self, anchors: slice) -> Runs:
        """Those of some anchors."""
        mat, positive, negative = self.mat[anchors], self.positive[anchors], self.negative[anchors]
        return self._replace(mat=mat, positive=positive, negative=negative)

    def bounds(self, of_positives: Tensor) -> Bounds:
        """Of the negatives that go with positives of this apartness."""
        lower = None if self.low == -torch.inf else just_above(of_positives + self.low)
        return Bounds(lower, just_above(of_positives + self.high))

    def are_chosen(self, anchor: int, positives: Tensor, negatives: Tensor) -> Tensor:
        """Which of these positives ``(k,)`` go with which of these negatives ``(m,)``, ``(k, m)`` bool."""
        lower, upper = self.bounds(self.mat[anchor, positives].unsqueeze(1))
        mat = self.mat[anchor, negatives]
        return mat < upper if lower is None else (lower <= mat) & (mat < upper)

    def counts(self) -> tuple[Tensor, Tensor]:
        """How many triplets each positive and each negative pair is part of, ``(a, n)``, int32."""
        positive, negative = (torch.empty_like(self.mat, dtype=torch.int32) for _ in range(2))
        at_once = num_at_once(self.mat, self.mat.shape[1])
        for first in range(0, len(self.mat), at_once):
            anchors = slice(first, first + at_once)
            mat, *pairs = (x[anchors] for x in (self.mat, self.positive, self.negative))
            positive[anchors], negative[anchors] = counts_within(self.bounds(mat), mat, *pairs)
        return positive, negative

    def counts_within(self, bounds: Bounds, mat: Tensor, distance: Any) -> tuple[Tensor, Tensor] | None:
        """Of the triplets whose negative is within bounds besides, by another distance.

        None: that distance has another order.

        Args:
            mat: :func:`apartness` by the other distance, ``(a, n)``.
        """
        if not torch.equal(mat, self.mat):
            if not (is_of_cosines(distance) and is_of_cosines(self.distance)):
                return None
            if not torch.allclose(_as_measured(mat, distance, self.distance), self.mat, atol=0.01):
                return None  # which all vectors of zeros have
            bounds = bounds.map(lambda numbers: _as_measured(numbers, distance, self.distance))
        return counts_within(bounds.and_within(self.bounds(self.mat)), self.mat, self.positive, self.negative)

    def lists(self) -> IndicesTuple:
        """Index tensors as PML's miners return them."""
        found = []
        for anchor in range(len(self.mat)):
            of_all, negatives = (x[anchor].nonzero().squeeze(1) for x in (self.positive, self.negative))
            for positives in of_all.split(num_at_once(self.mat, len(negatives))):
                p, n = self.are_chosen(anchor, positives, negatives).nonzero(as_tuple=True)
                found.append((torch.full_like(p, anchor), positives[p], negatives[n]))
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def apartness(distance: Any, mat: Tensor) -> Tensor:
    """What the distance measured, with a sign by which it grows where vectors come apart."""
    return -mat if distance.is_inverted else mat


def _as_measured(apartness: Tensor, distance: Any, other: Any) -> Tensor:
    """The same by another distance, if both are of cosines."""
    if not isinstance(distance, CosineSimilarity):
        apartness = apartness.clamp_min(0) ** (2 / distance.power) / 2 - 1  # |u - v|² = 2 - 2 u·v
    if not isinstance(other, CosineSimilarity):
        apartness = (2 + 2 * apartness).clamp_min(0) ** (other.power / 2)
    return apartness
