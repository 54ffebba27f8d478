"""The loss of all ranks' anchors against rows that are spread over the ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..memory._batch import Batch
from ..memory._queue import Contents
from ..pairwise import Comparison, attached, learned_tensors, recipe_of, share_against
from ._collectives import reduce_scattered
from ._global_batch import Report
from ._over_shards import OverShards
from ._sharded_rows import ShardedRows


class PartOfLoss(NamedTuple):
    """The loss, and the gradients of what one rank's rows add to it.

    Attributes:
        value: that of a single process.
        of_anchors: with respect to the anchors of all ranks, ``(a, d)``.
        learned: what else gets a gradient.
        of_learned: with respect to these.
    """

    value: Tensor
    of_anchors: Tensor
    learned: list[Tensor]
    of_learned: list[Tensor]

    def of_all_ranks(self, batch: Batch, reports: list[Report]) -> Tensor:
        """Returns the loss; the mean over ranks of its gradients is one process's. Called on all ranks.

        Each rank gets the sum of the gradients of its own anchors: nothing is sent in the backward pass.

        Args:
            batch: this rank's.
        """
        if not torch.is_grad_enabled():
            return self.value
        sizes = [report.num_anchors for report in reports]
        gradients = [reduce_scattered(self.of_anchors, sizes), *self.of_learned]
        return attached(self.value, gradients, [batch.anchors, *self.learned])


def part_of_loss(loss: Any, miner: Any, whole: Batch, contents: Contents) -> PartOfLoss:
    """Returns what this rank's rows add to the loss of the anchors of all ranks.

    Every rank compares them with its own rows, and the reductions over rows are merged.

    Args:
        whole: the batch of all ranks.
        contents: with the places of the batch's rows, if it is stored.
    """
    rows, newest, own_rows = contents.rows, contents.newest, None
    assert isinstance(rows, ShardedRows)
    leaf = whole.anchors.detach().requires_grad_(torch.is_grad_enabled())
    learned = learned_tensors(loss) if torch.is_grad_enabled() else []
    if len(leaf) == 0 or len(rows) == 0:
        zeros = [torch.zeros_like(x) for x in (leaf, *learned)]
        return PartOfLoss(leaf.new_zeros(()), zeros[0], learned, zeros[1:])
    if whole.is_own and newest is not None:
        held, numbers = rows.shard.held(newest)
        own_rows = torch.full_like(newest, -1).index_copy(0, numbers, held)
    over_rows = OverShards(len(rows), rows.most_places)
    compared = Comparison(
        loss, miner, leaf, whole.anchor_labels, rows, contents.row_labels, own_rows, None, over_rows
    )
    recipe = recipe_of(loss)
    assert recipe is not None, "a loss that can be sharded has one"
    value = share_against(compared, recipe).value()
    if not torch.is_grad_enabled():
        return PartOfLoss(value, leaf, [], [])
    of_anchors, *of_learned = torch.autograd.grad(
        value, [leaf, *learned], allow_unused=True, materialize_grads=True
    )
    return PartOfLoss(value.detach(), of_anchors, learned, of_learned)
