"""LiftedStructureLoss from its definition, pair by pair, sharing nothing with the package."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import LiftedStructureLoss
from torch import Tensor


class LiftedStructureOfPaper(LiftedStructureLoss):
    """Oh Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, Eq. 4.

    Attributes:
        self_pairs: for every anchor the index of its own copy, ``(a,)``; None where there is none.
    """

    def __init__(self, like: LiftedStructureLoss, self_pairs: Tensor | None) -> None:
        margins = like.neg_margin, like.pos_margin
        super().__init__(*margins, distance=like.distance, reducer=like.reducer)
        self.self_pairs = self_pairs

    def _compute_loss(self, pos_pairs: Tensor, neg_pairs: Tensor, indices_tuple: tuple[Tensor, ...]) -> Any:
        anchors, positives, anchors_of_negatives, _ = indices_tuple
        if len(anchors) == 0 or len(anchors_of_negatives) == 0:
            return self.zero_losses()
        self_pairs = [] if self.self_pairs is None else self.self_pairs.tolist()
        exponentials = self.distance.margin(self.neg_margin, neg_pairs).exp()
        terms = []
        for anchor, row, distance in zip(anchors.tolist(), positives.tolist(), pos_pairs, strict=True):
            both = [anchor, self_pairs.index(row)] if row in self_pairs else [anchor]
            of_both = exponentials[torch.isin(anchors_of_negatives, torch.tensor(both))]
            of_negatives = of_both.sum().log() if len(of_both) else 0.0
            hinge = (of_negatives + self.distance.margin(distance, self.pos_margin)).clamp_min(0)
            terms.append(hinge**2 / 2)
        indices = anchors, positives
        return {"loss": {"losses": torch.stack(terms), "indices": indices, "reduction_type": "pos_pair"}}
