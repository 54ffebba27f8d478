"""AngularMiner: triplets with a wide angle at the negative (https://arxiv.org/abs/1708.01682)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import pi, tan

import torch
from pytorch_metric_learning.miners import AngularMiner
from torch import Tensor
from torch.nn.functional import pairwise_distance

from ..._dtypes import at_least_float32
from .._choice import Choice
from .._sums import num_at_once, num_vectors_at_once
from .._triplets import Unlisted
from .candidates import Candidates

_EPS = 1e-6  # which torch's pairwise_distance adds to every coordinate of a difference


def angular(miner: AngularMiner, candidates: Candidates) -> Choice:
    rows = at_least_float32(candidates.distances.row_tensor)
    origin = rows.mean(dim=0)  # from which rounding hurts least
    anchors, rows = candidates.distances.anchors.to(rows) - origin, rows - origin
    others, ratio = rows + _EPS, 2 * tan(min(max(miner.angle, 0.0), pi / 2))
    triplets = _WideAngles(
        *candidates.pairs[:2], anchors, rows, others, torch.linalg.vecdot(others, others), ratio
    )
    return Choice(*triplets.counts(candidates.labels), triplets)


@dataclass(frozen=True, eq=False)
class _WideAngles(Unlisted):
    """Triplets whose negative n is nearer than |a - p| / ratio to the centre c of a and p.

    That is n·p + n·a - |n|² > |c|² - (|a - p| / ratio)².

    Attributes:
        anchors: ``(a, d)``.
        rows: ``(n, d)``.
        others: the rows, shifted as PML shifts negatives.
        squares: |n|² of these, ``(n,)``.
        ratio: 2 tan(angle).
    """

    anchors: Tensor
    rows: Tensor
    others: Tensor
    squares: Tensor
    ratio: float

    def of_anchors(self, anchors: slice) -> _WideAngles:
        positive, negative = self.positive[anchors], self.negative[anchors]
        return replace(self, positive=positive, negative=negative, anchors=self.anchors[anchors])

    def are_chosen(self, anchor: int, positives: Tensor, negatives: Tensor) -> Tensor:
        nearness = self._products(self.rows[positives] + self.anchors[anchor]) - self.squares
        return nearness[:, negatives] > self._least(anchor, positives)

    def counts(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """How many triplets each positive and each negative pair is part of, ``(a, n)``, int32.

        Args:
            labels: of the anchors, ``(a,)``; those of a class have their positives in common.
        """
        at_once = num_at_once(self.rows, len(self.rows))
        positive, negative = (self.rows.new_zeros(self.positive.shape) for _ in range(2))
        of_anchors = (self._products(self.anchors) - self.squares).masked_fill_(~self.negative, -torch.inf)
        for label in labels.unique():
            anchors = (labels == label).nonzero().squeeze(1)
            of_any = self.positive[anchors].any(dim=0).nonzero().squeeze(1)
            for many in of_any.split(num_vectors_at_once(self.rows)):
                products = self._products(self.rows[many])
                for positives, of_positives in zip(many.split(at_once), products.split(at_once), strict=True):
                    for anchor in anchors.tolist():
                        least = self._least(anchor, positives)
                        least = least.masked_fill(~self.positive[anchor, positives].unsqueeze(1), torch.inf)
                        # Ones and zeros, which are added faster than bools.
                        chosen = (of_positives + of_anchors[anchor]).gt_(least)
                        positive[anchor, positives] = chosen.sum(dim=1)
                        negative[anchor] += chosen.sum(dim=0)
        return positive.int(), negative.int()

    def _products(self, vectors: Tensor) -> Tensor:
        """With all others, ``(k, n)``."""
        with torch.autocast(vectors.device.type, enabled=False):
            return vectors @ self.others.T

    def _least(self, anchor: int, positives: Tensor) -> Tensor:
        """What is to be exceeded, ``(k, 1)``."""
        a, p = self.anchors[anchor], self.rows[positives]
        radii = pairwise_distance(a, p) / self.ratio
        return (((a + p) / 2).square().sum(dim=1) - radii.square()).unsqueeze(1)
