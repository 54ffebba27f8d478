"""Triplets of anchors and rows, of which runs are kept and none is listed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._index_tensors import listed


class Runs(NamedTuple):
    """Triplets of which consecutive positives, in the order of their distance, go with every negative."""

    places: Tensor  # (a, k), rows of the anchor's positives in that order, and behind them others
    counts: Tensor  # (a, k), how often each counts, int32; 0 for others
    negative: Tensor  # (a, n), how often each pair counts
    start: Tensor  # (a, n), number of the first positive that goes with a negative
    end: Tensor  # (a, n), number of the first behind these

    @classmethod
    def all(cls, mat: Tensor, positive: Tensor, negative: Tensor) -> Runs:
        """Returns all positives with all negatives of each anchor, by distances that grow as vectors part."""
        num_positives = (positive > 0).sum(dim=1, keepdim=True)
        k = min(mat.shape[1], max(1, int(num_positives.max())))
        places = torch.where(positive > 0, mat, torch.inf).topk(k, largest=False).indices
        end = num_positives.expand_as(mat)
        return cls(places, positive.gather(1, places).int(), negative, torch.zeros_like(end), end)

    def first(self, keys: Tensor, bounds: Tensor, *, is_above: bool = False) -> Tensor:
        """Returns the first positives whose keys, which grow with the distance, reach or exceed bounds."""
        return torch.searchsorted(self._of_positives(keys), bounds, right=is_above)

    def are_ordered_by(self, keys: Tensor) -> bool:
        """Returns whether the keys ``(a, n)`` do not fall with the distance, but for rounding."""
        keys = self._of_positives(keys)
        falls = (keys.cummax(dim=1).values - keys).nan_to_num(0.0)
        return bool(falls.max() <= torch.finfo(keys.dtype).eps ** 0.5)

    def _of_positives(self, keys: Tensor) -> Tensor:
        return keys.gather(1, self.places).masked_fill(self.counts == 0, torch.inf)

    def num_of_pairs(self) -> tuple[Tensor, Tensor]:
        """Returns how many triplets each positive and each negative pair is part of, ``(a, n)``, int32."""
        start, weights = torch.minimum(self.start, self.end), self.negative.int()
        before = pad(self.counts.cumsum(dim=1, dtype=torch.int32), (1, 0))
        per_negative = (before.gather(1, self.end) - before.gather(1, start)).mul_(weights)
        # By how much the number of negatives changes from one positive to the next.
        changes = torch.zeros_like(before)
        changes.scatter_add_(1, start, weights).scatter_add_(1, self.end, -weights)
        per_positive = changes.cumsum(dim=1, dtype=torch.int32)[:, :-1] * self.counts
        return torch.zeros_like(per_negative).scatter_add_(1, self.places, per_positive), per_negative

    def lists(self) -> tuple[Tensor, ...]:
        """Returns the triplets as three index tensors."""
        found = []
        for number in range(self.places.shape[1]):
            is_in = (self.start <= number) & (number < self.end)
            anchors, negatives = listed(self.counts[:, number, None] * self.negative * is_in)
            found.append((anchors, self.places[anchors, number], negatives))
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))
