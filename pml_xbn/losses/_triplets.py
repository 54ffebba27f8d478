"""Which positives of an anchor form triplets with which of its negatives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._counting import Bounds
from ._indices import IndicesTuple
from ._sums import num_at_once


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


@dataclass(frozen=True, eq=False)
class Unlisted(ABC):
    """Triplets that may be too many to be listed.

    Attributes:
        positive, negative: pairs of which triplets are chosen, ``(a, n)``, bool.
    """

    positive: Tensor
    negative: Tensor

    @abstractmethod
    def of_anchors(self, anchors: slice) -> Unlisted:
        """Those of some anchors."""

    @abstractmethod
    def are_chosen(self, anchor: int, positives: Tensor, negatives: Tensor) -> Tensor:
        """Which of these positives ``(k,)`` go with which of these negatives ``(m,)``, ``(k, m)`` bool."""

    def counts_within(self, bounds: Bounds, mat: Tensor, distance: Any) -> tuple[Tensor, Tensor] | None:
        """How many of those whose negative is within bounds each positive and each negative pair is part of.

        None: there is no telling without a look at every triplet.

        Args:
            mat: between which the bounds are, ``(a, n)``, the :func:`apartness` by the distance of a loss.
        """
        return None

    def lists(self) -> IndicesTuple:
        """Index tensors as PML's miners return them."""
        found = []
        for anchor in range(len(self.positive)):
            of_all, negatives = (x[anchor].nonzero().squeeze(1) for x in (self.positive, self.negative))
            for positives in of_all.split(num_at_once(of_all, len(negatives))):
                p, n = self.are_chosen(anchor, positives, negatives).nonzero(as_tuple=True)
                found.append((torch.full_like(p, anchor), positives[p], negatives[n]))
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))
