"""AngularLoss (https://arxiv.org/abs/1708.01682)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from pytorch_metric_learning.losses import AngularLoss
from torch import Tensor
from torch.nn.functional import softplus
from torch.utils.checkpoint import checkpoint

from ..._dtypes import widest
from .._cosines import SMALLEST_NORM, Distances
from .._rules import Elements, Fraction, Rule, Terms
from .._sums import Part, summed
from .pairs import Pairs


def angular(loss: AngularLoss, pairs: Pairs) -> dict[str, Terms]:
    return {"loss": _Angles(float(torch.tan(loss.alpha) ** 2), pairs)}


def products(_: AngularLoss, distances: Distances) -> Tensor:
    """Of anchors of unit length and the rows as they are, ``(a, n)``."""
    return distances.projections()


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
        positive, of_rows = self.pairs.positive, self.pairs.distances.row_products
        if not positive.any():
            return self.pairs.mat[:0].sum(), positive.sum()
        lengths = torch.linalg.vector_norm(of_rows.anchors, dim=1).clamp_min(SMALLEST_NORM)
        of_origin = lengths @ self.pairs.mat.detach() / len(lengths)  # that of the mean of the anchors
        factor = 4 * self.squared_tangent

        def parts(mat: Tensor) -> Iterator[Part]:
            for anchors, places, from_origin in of_rows.of_positives(positive, labels):
                part, own = mat[anchors], (self.pairs.row_labels == labels[anchors[0]]).nonzero().squeeze(1)
                lengths = torch.linalg.vector_norm(of_rows.at(places), dim=1).clamp_min(SMALLEST_NORM)
                of_positives = from_origin.add_(of_origin).mul_(factor / lengths.unsqueeze(1))
                terms = self._terms(part, part[:, places] / lengths, of_positives, own)
                total, count = Elements(terms, positive[anchors][:, places], anchors).fraction(rule, labels)
                yield anchors, part, total.unsqueeze(0), count.unsqueeze(0)

        total, count = summed(parts, self.pairs.mat)
        return total[0], count[0]

    def _terms(self, of_anchors: Tensor, cosines: Tensor, of_positives: Tensor, own: Tensor) -> Tensor:
        """Of some anchors and k positives of a class, ``(a, k)``.

        Args:
            of_anchors: their products, ``(a, n)``.
            cosines: between them and the positives, ``(a, k)``.
            of_positives: 4 tan²α times the products of the positives, of unit length, ``(k, n)``; written to.
            own: places of the rows of the class.
        """
        if len(own) == of_anchors.shape[1]:
            return torch.zeros_like(cosines)
        x = (4 * self.squared_tangent * of_anchors).index_fill(1, own, -torch.inf)
        log_sums = _log_sums_exp(x, of_positives.index_fill_(1, own, -torch.inf))
        return softplus(log_sums - 2 * (1 + self.squared_tangent) * cosines)


def _log_sums_exp(x: Tensor, y: Tensor) -> Tensor:
    """Of the sums of all rows x, ``(a, n)``, and y, ``(k, n)``: as ``(a, k)``."""
    largest = [z.detach().amax(dim=1, keepdim=True) for z in (x, y)]
    # A sum of products of exponentials, unless they are so different that the products vanish.
    for dtype in dict.fromkeys([x.dtype, widest(x[:0]).dtype]):
        least = torch.finfo(dtype).tiny
        powers_x, powers_y = (
            (z - most).to(dtype).clamp_min_(1 + math.log(least)).exp_()  # denormal numbers take long
            for z, most in zip((x, y), largest, strict=True)
        )
        sums = powers_x @ powers_y.T
        if not (sums < least / torch.finfo(dtype).eps ** 2).any():
            log_sums: Tensor = sums.log().to(x.dtype) + largest[0] + largest[1].T
            return log_sums
    of_each = (checkpoint(_log_sum_exp, of_one, y, use_reentrant=False) for of_one in x)
    return torch.stack(list(of_each))


def _log_sum_exp(of_anchor: Tensor, of_positives: Tensor) -> Tensor:
    return (of_anchor + of_positives).logsumexp(dim=1)
