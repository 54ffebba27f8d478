"""A memory's call on many ranks, each of which holds all rows, or a shard of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..distributed._ranks import Exchange, Report, reduce_scattered, same_draws, with_all_anchors
from ..distributed._shards import OverShards
from ..memory._batch import Batch, zero_loss
from ..pairwise._loss import KnownGradients, Share, share_against
from ..pairwise._recipes import recipe_of
from ._step import comparison, loss_with_memory, read_only, stored
from .batch_loss import loss_of_batch

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory


def loss_on_ranks(memory: Memory, batch: Batch, reports: list[Report]) -> Tensor:
    """Returns the loss of the batch of all ranks, with this rank's part of its gradient."""
    if memory._is_sharded:
        return _loss_on_shards(memory, batch, reports)
    is_warming_up = memory.queue.contents.num_calls < memory.warmup
    if not is_warming_up and all(report.can_share for report in reports):
        return _loss_of_shares(memory, batch, reports)
    whole = with_all_anchors(batch, reports)
    with Exchange():
        contents = stored(memory, whole)
        with same_draws(reports[0].seed, batch.refs.device):
            return loss_with_memory(memory, whole, contents)


def _loss_of_shares(memory: Memory, batch: Batch, reports: list[Report]) -> Tensor:
    """Returns the loss, of which every rank computes the terms of its own anchors."""
    recipe = recipe_of(memory.loss)
    assert recipe is not None  # as all can share
    whole = with_all_anchors(batch, reports) if memory.batch_loss_weight else batch
    loss, share = batch.anchors.new_zeros(()), Share(memory.loss, recipe, batch.anchors)
    with Exchange(len(share.totals)) as exchange:
        contents = stored(memory, batch)
        compared = None if contents is None else comparison(memory, batch, contents)
        if compared is not None:
            share = share_against(compared, recipe)
            exchange.values = share.totals
        if memory.batch_loss_weight:
            with same_draws(reports[0].seed, batch.refs.device):
                loss = memory.batch_loss_weight * loss_of_batch(memory.loss, memory.miner, whole)
    share.totals = exchange.by_rank.sum(dim=0)
    value, gradients = share.value()
    # Of which the mean over ranks is taken.
    known = value, [len(reports) * gradient for gradient in gradients]
    of_memory: Tensor = KnownGradients.apply(known, *share.inputs)
    return loss + of_memory


def _loss_on_shards(memory: Memory, batch: Batch, reports: list[Report]) -> Tensor:
    """Returns the loss of the batch of all ranks against rows that are spread over them.

    Every rank compares the anchors of all with its own rows, the reductions over rows are merged, and each
    rank gets the sum of the gradients of its own anchors: nothing is sent in the backward pass.
    """
    recipe = recipe_of(memory.loss)
    assert recipe is not None  # has been checked
    whole = with_all_anchors(batch, reports)
    contents = stored(memory, batch) if batch.is_stored else read_only(memory, batch)
    weight = 1.0 if contents is None else memory.batch_loss_weight * batch.is_stored
    loss = batch.anchors.new_zeros(())
    if weight:
        loss = weight * loss_of_batch(memory.loss, memory.miner, whole)
    apart = whole._replace(anchors=whole.anchors.detach().requires_grad_(torch.is_grad_enabled()))
    compared = None if contents is None else comparison(memory, apart, contents)
    if compared is None:
        return loss + zero_loss(batch)
    share = share_against(compared._replace(over_rows=OverShards(compared.rows)), recipe)
    value, gradients = share.value()
    if gradients:
        gradients[0] = reduce_scattered(gradients[0], [report.num_anchors for report in reports])
    of_memory: Tensor = KnownGradients.apply((value, gradients), batch.anchors, *recipe.learned)
    return loss + of_memory
