"""The loss of all ranks' anchors against rows that are spread over the ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..memory._batch import Batch
from ..memory._queue import Contents
from ..pairwise._forms import recipe_of
from ..pairwise._loss import Comparison, attached, share_against
from ._collectives import reduce_scattered
from ._global_batch import Report
from ._over_shards import OverShards
from ._sharded_rows import ShardedRows


class PartOfLoss(NamedTuple):
    """The loss of a single process, with the gradients of what one rank's rows add to it."""

    value: Tensor
    inputs: list[Tensor]  # the anchors of all ranks (a, d), and what is learned besides

    def whole_loss(self, batch: Batch, reports: list[Report]) -> Tensor:
        """Returns the loss; the mean over ranks of its gradients is one process's. Called on all ranks.

        Each rank gets the sum of the gradients of its own anchors: nothing is sent in the backward pass.

        Args:
            batch: this rank's.
        """
        if not torch.is_grad_enabled():
            return self.value
        anchor_gradient, *learned_gradients = torch.autograd.grad(
            self.value, self.inputs, allow_unused=True, materialize_grads=True
        )
        own_gradient = reduce_scattered(anchor_gradient, [report.num_anchors for report in reports])
        inputs = [batch.anchors, *self.inputs[1:]]
        return attached(self.value.detach(), [own_gradient, *learned_gradients], inputs)


def part_of_loss(loss: Any, miner: Any, whole: Batch, contents: Contents) -> PartOfLoss:
    """Returns what this rank's rows add to the loss of the anchors of all ranks.

    Every rank compares them with its own rows, and the reductions over rows are merged.

    Args:
        whole: the batch of all ranks.
        contents: with the places of the batch's rows, if it is stored.
    """
    rows, newest, own_rows, recipe = contents.rows, contents.newest, None, recipe_of(loss)
    assert isinstance(rows, ShardedRows)
    assert recipe is not None, "a loss that can be sharded has one"
    anchors = whole.anchors.detach().requires_grad_(torch.is_grad_enabled())
    inputs = [anchors, *recipe.learned]
    if len(anchors) == 0 or len(rows) == 0:
        return PartOfLoss((anchors * 0).sum(), inputs)
    if whole.own is not None and newest is not None:
        held, which = rows.places_here(newest)
        own_rows = torch.full_like(newest, -1).index_copy(0, which, held)
    labels, over_rows = (whole.anchor_labels, contents.row_labels), OverShards(rows.most_places)
    compared = Comparison(loss, miner, anchors, labels[0], rows, labels[1], own_rows, None, over_rows)
    return PartOfLoss(share_against(compared, recipe).value(), inputs)
