"""Pairs as boolean masks instead of lists, for the losses and miners that turn lists into masks anyway."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.miners import PairMarginMiner
from torch import Tensor

from ._cosines import Distances, is_of_cosines
from ._pairs import IndicesTuple
from ._twins import has_hooks, is_as_built


class PairMasks(NamedTuple):
    """Which of the anchors × rows are positive and which negative pairs, ``(a, n)`` each, bool."""

    positive: Tensor
    negative: Tensor

    def lists(self) -> IndicesTuple:
        return *self.positive.nonzero(as_tuple=True), *self.negative.nonzero(as_tuple=True)


def can_choose(miner: Any) -> bool:
    """Whether :func:`pair_masks` chooses as the miner does, and nobody can tell that it was not called."""
    return miner is None or (
        type(miner) is PairMarginMiner
        and not miner.collect_stats
        and is_as_built(miner)
        and not has_hooks(miner)
    )


def pair_masks(
    miner: PairMarginMiner | None,
    distances: Distances,
    labels: Tensor,
    row_labels: Tensor,
    own_rows: Tensor | None,
) -> PairMasks:
    """All pairs, or those that the miner would choose, without those of an anchor and its own row."""
    positive = labels.unsqueeze(1) == row_labels
    negative = ~positive
    if own_rows is not None:
        positive[torch.arange(len(own_rows), device=own_rows.device), own_rows] = False
    if miner is not None:
        measure, rows = miner.distance, distances.row_tensor
        if is_of_cosines(measure):
            rows = distances.placeholder
            measure = distances.distance(measure, rows)
        with torch.no_grad():
            mat = measure(distances.anchors, rows)
        if miner.distance.is_inverted:
            positive &= mat < miner.pos_margin
            negative &= mat > miner.neg_margin
        else:
            positive &= mat > miner.pos_margin
            negative &= mat < miner.neg_margin
    return PairMasks(positive, negative)


def masks_of(pairs: IndicesTuple, shape: tuple[int, int]) -> PairMasks:
    """The masks, of this shape, of listed pairs."""
    a1, p, a2, n = pairs
    masks = PairMasks(*(torch.zeros(shape, dtype=torch.bool, device=a1.device) for _ in range(2)))
    masks.positive[a1, p] = True
    masks.negative[a2, n] = True
    return masks
