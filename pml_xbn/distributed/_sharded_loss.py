"""The loss of all ranks' anchors against rows that are spread over the ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..memory._batch import Batch
from ..memory._queue import Contents
from ..pairwise._forms import recipe_of
from ..pairwise._loss import Comparison, KnownGradients, Share, share_against
from ._collectives import reduce_scattered
from ._global_batch import Report
from ._over_shards import OverShards
from ._sharded_rows import ShardedRows

Part = tuple[Tensor, list[Tensor], list[Tensor]]


def part_of_loss(loss: Any, miner: Any, whole: Batch, contents: Contents) -> Part:
    """Returns the loss of one process, gradients of what this rank's rows add to it, and what they are of.

    Every rank compares the anchors of all with its own rows, and the reductions over rows are merged.

    Args:
        whole: the batch of all ranks.
        contents: with the places of the batch's rows, if it is stored.
    """
    rows, newest, own_rows, recipe = contents.rows, contents.newest, None, recipe_of(loss)
    assert isinstance(rows, ShardedRows)
    if recipe is None:
        raise ValueError(
            f"{type(loss).__name__} has a hook, or was changed, with shard_distributed=True: "
            "pass gather_distributed=True instead"
        )
    anchors = whole.anchors.detach().requires_grad_(torch.is_grad_enabled())
    if len(anchors) == 0 or len(rows) == 0:
        share = Share(loss, recipe, anchors)
        share.begin()
    else:
        if whole.own is not None and newest is not None:
            held, which = rows.held(newest, torch.arange(len(newest), device=newest.device))
            own_rows = torch.full_like(newest, -1).index_copy(0, which, held)
        labels, over_rows = (whole.anchor_labels, contents.row_labels), OverShards(rows.most_places)
        compared = Comparison(loss, miner, anchors, labels[0], rows, labels[1], own_rows, None, over_rows)
        share = share_against(compared, recipe)
    return *share.value(), share.inputs


def whole_loss(part: Part, batch: Batch, reports: list[Report]) -> Tensor:
    """Returns the loss; the mean over ranks of its gradients is one process's. Called on all ranks.

    Each rank gets the sum of the gradients of its own anchors: nothing is sent in the backward pass.

    Args:
        part: of :func:`part_of_loss`.
        batch: this rank's.
    """
    value, gradients, (_, *learned) = part
    if gradients:
        gradients[0] = reduce_scattered(gradients[0], [report.num_anchors for report in reports])
    loss: Tensor = KnownGradients.apply((value, gradients), batch.anchors, *learned)
    return loss
