"""AngularMiner: triplets with a wide angle at the negative (https://arxiv.org/abs/1708.01682)."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, tan

import torch
from pytorch_metric_learning.miners import AngularMiner
from torch import Tensor
from torch.nn.functional import pairwise_distance

from .._choice import Choice
from .._row_products import RowProducts
from .._sums import num_at_once
from .._triplets import Unlisted
from .candidates import Candidates

_EPS = 1e-6  # which torch's pairwise_distance adds to every coordinate of a difference


def angular(miner: AngularMiner, candidates: Candidates) -> Choice:
    of_rows, (positive, negative, _) = candidates.distances.row_products, candidates.pairs
    anchors, ratio = of_rows.anchors - of_rows.origin, 2 * tan(min(max(miner.angle, 0.0), pi / 2))
    nearness = of_rows.nearness(_EPS).masked_fill_(~negative, -torch.inf)
    triplets = _WideAngles(positive, negative, anchors, nearness, of_rows, ratio)
    return Choice(*triplets.counts(candidates.labels), triplets)


@dataclass(frozen=True, eq=False)
class _WideAngles(Unlisted):
    """Triplets whose negative n is nearer than |a - p| / ratio to the centre c of a and p.

    That is n·p + n·a - |n|² > |c|² - (|a - p| / ratio)². The vectors are less the origin, and n is shifted
    as PML shifts negatives.

    Attributes:
        anchors: ``(a, d)``.
        nearness: n·a - |n|², ``(a, n)``, but for what n is shifted by; -inf where n is no negative of a.
        of_rows: has n·p, likewise.
        ratio: 2 tan(angle).
    """

    anchors: Tensor
    nearness: Tensor
    of_rows: RowProducts
    ratio: float

    def of_anchors(self, anchors: slice) -> _WideAngles:
        positive, negative = self.positive[anchors], self.negative[anchors]
        vectors, nearness = self.anchors[anchors], self.nearness[anchors]
        return _WideAngles(positive, negative, vectors, nearness, self.of_rows, self.ratio)

    def are_chosen(self, anchor: int, positives: Tensor, negatives: Tensor) -> Tensor:
        nearness = self.of_rows.of_rows(positives)[:, negatives] + self.nearness[anchor, negatives]
        return nearness > self._least(slice(anchor, anchor + 1), positives)[0]

    def counts(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """How many triplets each positive and each negative pair is part of, ``(a, n)``, int32.

        Args:
            labels: of the anchors, ``(a,)``; those of a class have their positives in common.
        """
        at_once = num_at_once(self.nearness, self.nearness.shape[1])
        positive, negative = (torch.zeros_like(self.nearness) for _ in range(2))
        for anchors, places, products in self.of_rows.of_positives(self.positive, labels):
            for positives, of_positives in zip(places.split(at_once), products.split(at_once), strict=True):
                are_positive = self.positive[anchors][:, positives].unsqueeze(2)
                least = self._least(anchors, positives).masked_fill_(~are_positive, torch.inf)
                for anchor, of_anchor in zip(anchors.tolist(), least, strict=True):
                    # Ones and zeros, which are added faster than bools.
                    chosen = (of_positives + self.nearness[anchor]).gt_(of_anchor)
                    positive[anchor, positives] = chosen.sum(dim=1)
                    negative[anchor] += chosen.sum(dim=0)
        return positive.int(), negative.int()

    def _least(self, anchors: slice | Tensor, positives: Tensor) -> Tensor:
        """What b anchors and k positives ask to be exceeded, ``(b, k, 1)``."""
        a, p = self.anchors[anchors].unsqueeze(1), self.of_rows.at(positives) - self.of_rows.origin
        radii = pairwise_distance(a, p) / self.ratio
        shift = (a + p) @ (_EPS - self.of_rows.origin)  # of n·(a + p), which is of the rows as they are
        return (((a + p) / 2).square().sum(dim=2) - radii.square() - shift).unsqueeze(2)
