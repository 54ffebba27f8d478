"""Anchors that are compared with stored rows."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ..memory._rows import Rows
from ._distance_weighted import mined_by_distance
from ._distances import Distances
from ._index_tensors import IndicesTuple
from ._miners import mined, mined_by_its_own_code
from ._pairs import Pairs, leave_out
from ._recipes import draws_by_distance, is_function_of_pairs


class Comparison(NamedTuple):
    """Anchors and rows, at least one of each, and the loss of them."""

    loss: Any  # that a memory supports
    miner: Any  # chooses among the pairs; None: all
    anchors: Tensor  # (a, d), with gradient
    anchor_labels: Tensor  # (a,)
    rows: Rows  # (n, d)
    row_labels: Tensor  # (n,)
    own_rows: Tensor | None = None  # (a,), rows of the anchors' own copies, which they are not compared with
    user_pairs: IndicesTuple | None = None  # pairs or triplets of anchors and rows besides
    chosen: Pairs | None = None  # where the pairs have been chosen: a miner of the user's is called once

    def all_pairs(self, first: int | None = None) -> Pairs:
        """Returns all pairs but own copies.

        Args:
            first: the number of the first row, if the rows are a part of those that are numbered.
        """
        positive = self.anchor_labels.unsqueeze(1) == self.row_labels
        negative = ~positive
        if self.own_rows is not None:
            positive = leave_out(positive, self.own_rows, first)
        return Pairs(positive, negative, self.anchor_labels, self.row_labels, self.own_rows, first or 0)

    def choose_pairs(self, distances: Distances) -> Pairs:
        """Returns what the miner chooses, without one all but own copies, and what is given besides."""
        if self.chosen is not None:
            return self.chosen
        pairs = self.all_pairs()
        if self.miner is not None:
            mine = mined_by_its_own_code
            if is_function_of_pairs(self.miner):
                mine = mined
            elif draws_by_distance(self.miner):
                mine = mined_by_distance
            pairs = mine(self.miner, distances, pairs)
        return pairs if self.user_pairs is None else pairs.and_user_pairs(self.user_pairs)
