"""IntraPairVarianceLoss (Yu and Tao, Deep Metric Learning with Tuplet Margin Loss, ICCV 2019)."""

from __future__ import annotations

from pytorch_metric_learning.losses import IntraPairVarianceLoss

from .._choice import listed
from .._rules import Elements, Rule, Terms
from .pairs import Pairs


def intra_pair_variance(loss: IntraPairVarianceLoss, pairs: Pairs) -> dict[str, Terms]:
    is_inverted, (anchors, rows) = loss.distance.is_inverted, listed(pairs.positive)

    def of(chosen: Elements, eps: float, should_grow: bool) -> Elements:
        total, number = chosen.fraction(Rule(), pairs.labels)
        values = loss.variance_with_eps(chosen.values, total / number.clamp_min(1), eps, should_grow)
        return chosen._replace(values=values.relu() ** 2)

    positive = Elements(pairs.mat[anchors, rows], anchors=anchors)
    return {
        "pos_loss": of(positive, loss.pos_eps, is_inverted),
        "neg_loss": of(Elements(pairs.mat, pairs.negative), loss.neg_eps, not is_inverted),
    }
