"""The loss of all ranks' anchors against rows that are spread over the ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..memory._batch import Batch
from ..memory._queue import Contents
from ..pairwise import Comparison, attached, learned_tensors, share_against
from ._collectives import gather_rows, reduce_scattered
from ._global_batch import Report
from ._over_shards import OverShards
from ._sharded_rows import ShardedRows


def sharded_loss(loss: Any, miner: Any, batch: Batch, reports: list[Report], contents: Contents) -> Tensor:
    """Returns the loss of the batch of all ranks; the mean over ranks of its gradients is one process's.

    Every rank compares the anchors of all ranks with its own rows. The reductions over rows are merged, and
    each rank gets the sum of the gradients of its own anchors, all before the loss is returned: nothing is
    sent in the backward pass.

    Args:
        batch: this rank's gathered one.
        contents: with the batch's places, if it is stored.
    """
    rows, newest = contents.rows, contents.newest
    assert isinstance(rows, ShardedRows)
    sizes, own_rows = [report.num_anchors for report in reports], None
    if batch.is_own:
        anchors, labels = batch.rows, batch.row_labels
        if newest is not None:
            held, numbers = rows.held(newest)
            own_rows = torch.full_like(newest, -1).index_copy(0, numbers, held)
    else:
        anchors, labels = (gather_rows(x.detach(), sizes) for x in (batch.anchors, batch.anchor_labels))
    if len(anchors) == 0 or len(rows) == 0:
        return (batch.anchors * 0).sum()
    leaf = anchors.detach().requires_grad_(torch.is_grad_enabled())
    over_rows = OverShards(len(rows), rows.most_places)
    compared = Comparison(loss, miner, leaf, labels, rows, contents.row_labels, own_rows, None, over_rows)
    value = share_against(compared).value()
    if not torch.is_grad_enabled():
        return value
    learned = learned_tensors(loss)
    of_anchors, *of_learned = torch.autograd.grad(
        value, [leaf, *learned], allow_unused=True, materialize_grads=True
    )
    gradients = [reduce_scattered(of_anchors, sizes), *of_learned]
    return attached(value.detach(), gradients, [batch.anchors, *learned])
