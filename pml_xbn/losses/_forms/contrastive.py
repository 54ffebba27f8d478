"""ContrastiveLoss (Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, Eq. 4)."""

from __future__ import annotations

from pytorch_metric_learning.losses import ContrastiveLoss

from .._choice import listed
from .._rules import Elements, Terms
from .pairs import Pairs


def contrastive(loss: ContrastiveLoss, pairs: Pairs) -> dict[str, Terms]:
    margin, (anchors, rows) = loss.distance.margin, listed(pairs.positive)
    too_far = margin(pairs.mat[anchors, rows], loss.pos_margin).relu()
    too_near = margin(loss.neg_margin, pairs.mat).relu()
    return {"pos_loss": Elements(too_far, anchors=anchors), "neg_loss": Elements(too_near, pairs.negative)}
