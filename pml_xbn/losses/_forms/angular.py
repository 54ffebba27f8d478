"""AngularLoss (https://arxiv.org/abs/1708.01682)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from pytorch_metric_learning.losses import AngularLoss
from torch import Tensor
from torch.nn.functional import normalize, softplus
from torch.utils.checkpoint import checkpoint

from ..._dtypes import at_least_float32
from .._cosines import Distances
from .._rules import Elements, Fraction, Rule, Terms
from .._sums import Part, num_vectors_at_once, summed
from .pairs import Pairs


def angular(loss: AngularLoss, pairs: Pairs) -> dict[str, Terms]:
    return {"loss": _Angles(float(torch.tan(loss.alpha) ** 2), pairs)}


def products(_: AngularLoss, distances: Distances) -> Tensor:
    """Of anchors of unit length and the rows as they are, ``(a, n)``."""
    with torch.autocast(distances.anchors.device.type, enabled=False):
        anchors, rows = at_least_float32(distances.anchors), at_least_float32(distances.row_tensor)
        of_anchors: Tensor = normalize(anchors) @ rows.T
    return of_anchors


class _Angles(NamedTuple):
    """Of every positive pair, log(1 + the sum of exp(4 tan²α (a + p)·n - 2 (1 + tan²α) a·p) over rows n).

    The rows are those of other classes, whatever has been chosen.

    Attributes:
        squared_tangent: tan²α.
        pairs: with the :func:`products`.
    """

    squared_tangent: float
    pairs: Pairs

    def fraction(self, rule: Rule, labels: Tensor) -> Fraction:
        positive, rows = self.pairs.positive, at_least_float32(self.pairs.distances.row_tensor)
        at_once = num_vectors_at_once(rows)

        def parts(mat: Tensor) -> Iterator[Part]:
            for label in labels.unique():
                anchors, others = (labels == label).nonzero().squeeze(1), self.pairs.row_labels != label
                counts = positive[anchors]
                for places in counts.any(dim=0).nonzero().squeeze(1).split(at_once):
                    part = mat[anchors]
                    elements = Elements(self._terms(part, places, others, rows), counts[:, places], anchors)
                    total, count = elements.fraction(rule, labels)
                    yield anchors, part, total.unsqueeze(0), count.unsqueeze(0)

        with torch.autocast(rows.device.type, enabled=False):
            total, count = summed(parts, self.pairs.mat)
        return total[0], count[0]

    def _terms(self, mat: Tensor, places: Tensor, others: Tensor, rows: Tensor) -> Tensor:
        """Of anchors with these products ``(a, n)`` and the positives at k places, ``(a, k)``."""
        lengths: Tensor = torch.linalg.vector_norm(rows[places], dim=1).clamp_min(1e-12)
        cosines = mat[:, places] / lengths
        if not others.any():
            return torch.zeros_like(cosines)
        factor = 4 * self.squared_tangent
        of_anchors = (factor * mat).masked_fill(~others, -torch.inf)
        of_positives = (factor * rows[places] / lengths.unsqueeze(1)) @ rows.T
        exponents = _log_sums_exp(of_anchors, of_positives) - 2 * (1 + self.squared_tangent) * cosines
        return softplus(exponents)


def _log_sums_exp(x: Tensor, y: Tensor) -> Tensor:
    """Of the sums of all rows x, ``(a, n)``, and y, ``(k, n)``: as ``(a, k)``."""
    most_x, most_y = (z.detach().amax(dim=1, keepdim=True) for z in (x, y))
    # A sum of products of exponentials, unless they are so different that the products vanish.
    sums = (x - most_x).exp() @ (y - most_y).exp().T
    if (sums < 1e-26).any():
        of_each = (checkpoint(_log_sum_exp, of_one, y, use_reentrant=False) for of_one in x)
        return torch.stack(list(of_each))
    log_sums: Tensor = sums.log() + most_x + most_y.T
    return log_sums


def _log_sum_exp(of_anchor: Tensor, of_positives: Tensor) -> Tensor:
    return (of_anchor + of_positives).logsumexp(dim=1)
