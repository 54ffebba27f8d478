"""The terms of PML's AngularLoss."""

from __future__ import annotations

from collections.abc import Iterator

from pytorch_metric_learning.losses import AngularLoss
from torch import Tensor

from ..memory._rows import Rows
from ._index_tensors import listed
from ._pairs import Pairs, anchors_at_once
from ._terms import Elements


def angular_terms(loss: AngularLoss, anchors: Tensor, stored: Rows, pairs: Pairs) -> Iterator[Elements]:
    """Yields the terms by PML's own code, some positive pairs at a time."""
    a1, p = listed(pairs.positive > 0)  # once each, as triplets hold a pair with every negative
    if len(a1) == 0 or not pairs.negative.any():
        return
    rows = stored.read(anchors.dtype)
    at_once = 8 * anchors_at_once(len(rows), rows.device)  # for each part all rows are read
    for anchors_of_pairs, places in zip(a1.split(at_once), p.split(at_once), strict=True):
        # All rows of other classes are its negatives, whatever is listed, but something has to be listed.
        lists = anchors_of_pairs, places, a1[:1], p[:1]
        found = loss.compute_loss(anchors, pairs.labels, lists, rows, pairs.row_labels)  # no hook sees it
        yield Elements(found["loss"]["losses"].flatten(), pairs.positive[anchors_of_pairs, places])
