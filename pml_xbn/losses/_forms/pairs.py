"""What a loss is computed from."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from .._choice import Choice
from .._cosines import Distances


class Pairs(NamedTuple):
    """Pairs of anchors and rows, or triplets.

    Attributes:
        mat: the form's matrix, ``(a, n)``, with gradient.
        choice: which of the pairs count.
        labels: of the anchors, ``(a,)``.
        row_labels: ``(n,)``.
        distances: who has the rows.
        weights: the form's, ``(a,)``, if it has any.
    """

    mat: Tensor
    choice: Choice
    labels: Tensor
    row_labels: Tensor
    distances: Distances
    weights: Tensor | None = None

    @property
    def positive(self) -> Tensor:
        """How often each pair counts as positive, ``(a, n)``, bool or integers."""
        return self.choice.positive

    @property
    def negative(self) -> Tensor:
        """How often each pair counts as negative, ``(a, n)``, bool or integers."""
        return self.choice.negative

    def similarities(self, distance: Any) -> Tensor:
        """The matrix, with a sign by which it grows where vectors become alike."""
        return self.mat if distance.is_inverted else -self.mat

    def of_anchors(self, anchors: slice) -> Pairs:
        """The part of some anchors."""
        return self._replace(
            mat=self.mat[anchors],
            choice=self.choice.of_anchors(anchors),
            labels=self.labels[anchors],
            weights=None if self.weights is None else self.weights[anchors],
        )
