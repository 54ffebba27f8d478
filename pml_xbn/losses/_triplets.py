"""Which positives of an anchor form triplets with which of its negatives."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ._indices import IndicesTuple


class Listed(NamedTuple):
    """Triplets one by one: the numbers of anchors, positives and negatives, ``(t,)`` each."""

    anchors: Tensor
    positives: Tensor
    negatives: Tensor

    def of_anchors(self, anchors: slice) -> Listed:
        """Those of some anchors, which are numbered anew."""
        keep = (anchors.start <= self.anchors) & (self.anchors < anchors.stop)
        return Listed(self.anchors[keep] - anchors.start, self.positives[keep], self.negatives[keep])

    def lists(self) -> IndicesTuple:
        return tuple(self)
