"""What a miner chooses among."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from .._choice import Choice
from .._cosines import Distances


class Candidates(NamedTuple):
    """Pairs of anchors and rows.

    Attributes:
        pairs: all but those of an anchor and its own row.
        distances: between anchors and rows.
        labels: of the anchors, ``(a,)``.
        row_labels: ``(n,)``.
        own_rows: row of every anchor's own copy, ``(a,)``; None where it has none.
    """

    pairs: Choice
    distances: Distances
    labels: Tensor
    row_labels: Tensor
    own_rows: Tensor | None

    def mat(self, miner: Any) -> Tensor:
        """What the miner's distance measures between anchors and rows, ``(a, n)``; not to be written to."""
        return self.distances.measured(miner.distance)

    def similarities(self, miner: Any) -> Tensor:
        """The matrix, with a sign by which it grows where vectors become alike; not to be written to."""
        mat = self.mat(miner)
        return mat if miner.distance.is_inverted else -mat
