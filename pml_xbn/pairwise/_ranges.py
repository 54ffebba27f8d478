"""Triplets of anchors and rows, stored as ranges of indices."""

from __future__ import annotations

from typing import NamedTuple

import torch
from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity, LpDistance
from torch import Tensor
from torch.nn.functional import pad

from .._tracing import can_read


class Ranges(NamedTuple):
    """Triplets in which each negative goes with a range of the anchor's positives, sorted by distance."""

    indices: Tensor  # (a, k), rows of the anchor's positives, sorted, and behind them others
    counts: Tensor  # (a, k), how often each counts, int32; 0 for others
    negative: Tensor  # (a, n), how often each pair counts
    start: Tensor  # (a, n), number of the first positive that goes with a negative
    end: Tensor  # (a, n), number of the first behind these
    distance: BaseDistance | None  # by which the positives are sorted

    @classmethod
    def all(
        cls,
        mat: Tensor,
        positive: Tensor,
        negative: Tensor,
        distance: BaseDistance | None = None,
        most: int | None = None,
    ) -> Ranges:
        """Returns all positives with all negatives of each anchor.

        Args:
            mat: ``(a, n)``, which grows with the distance.
            positive: how often each pair counts, ``(a, n)``.
            negative: the same of negatives.
            distance: which measured the matrix.
            most: how many positives an anchor has at most, if that is known.
        """
        num_positives = (positive > 0).sum(dim=1, keepdim=True)
        if most is None:
            most = int(num_positives.max()) if can_read(mat) else mat.shape[1]
        k = min(mat.shape[1], max(1, most))
        indices = torch.where(positive > 0, mat, torch.inf).topk(k, largest=False).indices
        end = num_positives.expand_as(mat)
        start = torch.zeros_like(end)
        return cls(indices, positive.gather(1, indices).int(), negative, start, end, distance)

    def first(self, keys: Tensor, bounds: Tensor, *, is_above: bool = False) -> Tensor:
        """Returns the first positives whose keys, which grow with the distance, reach or exceed bounds."""
        return torch.searchsorted(self._of_positives(keys), bounds, right=is_above)

    def are_sorted_by(self, keys: Tensor, distance: BaseDistance) -> bool:
        """Returns whether the keys ``(a, n)`` do not fall with the distance, but for rounding.

        Args:
            keys: which grow with the second distance.
            distance: which measured the keys.
        """
        if self.indices.shape[1] == 1 or (self.distance is not None and sort_alike(self.distance, distance)):
            return True
        keys = self._of_positives(keys)
        falls = (keys.cummax(dim=1).values - keys).nan_to_num(0.0)
        return bool(falls.max() <= torch.finfo(keys.dtype).eps ** 0.5)

    def at(self, anchors: slice) -> Ranges:
        """Returns the triplets of some anchors."""
        indices, counts, negative, start, end = (x[anchors] for x in self[:5])
        return Ranges(indices, counts, negative, start, end, self.distance)

    def _of_positives(self, keys: Tensor) -> Tensor:
        return keys.gather(1, self.indices).masked_fill(self.counts == 0, torch.inf)

    def num_of_pairs(self) -> tuple[Tensor, Tensor]:
        """Returns how many triplets each positive and each negative pair is part of, ``(a, n)``, int32."""
        start, weights = torch.minimum(self.start, self.end), self.negative.int()
        before = pad(self.counts.cumsum(dim=1, dtype=torch.int32), (1, 0))
        per_negative = (before.gather(1, self.end) - before.gather(1, start)).mul_(weights)
        # By how much the number of negatives changes from one positive to the next.
        changes = torch.zeros_like(before)
        changes.scatter_add_(1, start, weights).scatter_add_(1, self.end, -weights)
        per_positive = changes.cumsum(dim=1, dtype=torch.int32)[:, :-1] * self.counts
        return torch.zeros_like(per_negative).scatter_add_(1, self.indices, per_positive), per_negative

    def lists(self) -> tuple[Tensor, ...]:
        """Returns the triplets as three index tensors."""
        found = []
        for number in range(self.indices.shape[1]):
            is_in = (self.start <= number) & (number < self.end)
            anchors, negatives = listed(self.counts[:, number, None] * self.negative * is_in)
            found.append((anchors, self.indices[anchors, number], negatives))
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def sort_alike(one: BaseDistance, other: BaseDistance) -> bool:
    """Returns whether two of PML's distances are known to sort rows alike."""
    if one is other:
        return True
    if one.p != other.p or one.normalize_embeddings != other.normalize_embeddings:
        return False
    if type(one) is type(other) and one.power == other.power:
        return True
    if not all(_grows_with_length(x) or _is_cosine(x) for x in (one, other)):
        return False
    are_of_angles = one.p == 2 and one.normalize_embeddings  # cosines fall with the distance then
    return are_of_angles or (_grows_with_length(one) and _grows_with_length(other))


def _grows_with_length(distance: BaseDistance) -> bool:
    return type(distance) is LpDistance and distance.power > 0


def _is_cosine(distance: BaseDistance) -> bool:
    return type(distance) is CosineSimilarity and distance.power == 1


def listed(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Returns anchors and rows of pairs, each as often as it counts."""
    indices = counts.nonzero()
    if counts.dtype != torch.bool:
        indices = indices.repeat_interleave(counts[counts > 0], dim=0)
    anchors, rows = indices.unbind(dim=1)
    return anchors, rows
