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
        own_rows: row of every anchor's own copy, ``(a,)``; None where it has none.
        weights: the form's, ``(a,)``, if it has any.
    """

    mat: Tensor
    choice: Choice
    labels: Tensor
    row_labels: Tensor
    distances: Distances
    own_rows: Tensor | None = None
    weights: Tensor | None = None

    @property
    def positive(self) -> Tensor:
        """How often each pair counts as positive, ``(a, n)``, bool or integers."""
        return self.choice.positive

    @property
    def negative(self) -> Tensor:
        """How often each pair counts as negative, ``(a, n)``, bool or integers."""
        return self.choice.negative

    @property
    def positive_mask(self) -> Tensor:
        """Which pairs are positive, ``(a, n)`` bool."""
        return self.positive.bool()

    @property
    def negative_mask(self) -> Tensor:
        """Which pairs are negative, ``(a, n)`` bool."""
        return self.negative.bool()

    def similarities(self, distance: Any) -> Tensor:
        """The matrix, with a sign by which it grows where vectors become alike."""
        return self.mat if distance.is_inverted else -self.mat

    def of_anchors(self, anchors: slice) -> Pairs:
        """The part of some anchors."""
        return self._replace(
            mat=self.mat[anchors],
            choice=self.choice.of_anchors(anchors),
            labels=self.labels[anchors],
            own_rows=None if self.own_rows is None else self.own_rows[anchors],
            weights=None if self.weights is None else self.weights[anchors],
        )
