"""One call of a memory that many ranks make together: they compute one loss, and each its part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..distributed import _ranks as ranks
from ..distributed._shards import OverShards
from ..memory._batch import Batch, zero_loss
from ..pairwise._loss import KnownGradients, Share, share_against
from ..pairwise._recipes import Recipe, recipe_of
from ._step import comparison, loss_with_memory, read_only, stored
from .batch_loss import loss_of_batch

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory


def loss_on_ranks(memory: Memory, batch: Batch, reports: list[ranks.Report]) -> Tensor:
    """Returns the loss of the batch of all ranks, with this rank's part of its gradient."""
    recipe, is_warming_up = recipe_of(memory.loss), memory.queue.contents.num_calls < memory.warmup
    if recipe is not None and memory._is_sharded:
        return _loss_sharded(memory, batch, reports, recipe)
    if recipe is not None and not is_warming_up and all(report.can_share for report in reports):
        return _loss_gathered(memory, batch, reports, recipe)
    whole = ranks.with_all_anchors(batch, reports)
    with ranks.Exchange():
        contents = stored(memory, whole)
        with ranks.same_draws(reports[0].seed, batch.refs.device):
            return loss_with_memory(memory, whole, contents)


def _loss_gathered(memory: Memory, batch: Batch, reports: list[ranks.Report], recipe: Recipe) -> Tensor:
    """Returns the loss, of which every rank computes the terms of its own anchors."""
    whole = ranks.with_all_anchors(batch, reports) if memory.batch_loss_weight else batch
    loss, share = batch.anchors.new_zeros(()), Share(memory.loss, recipe, batch.anchors)
    with ranks.Exchange(len(share.totals)) as exchange:
        compared = comparison(memory, batch, stored(memory, batch))
        if compared is not None:
            share = share_against(compared, recipe)
            exchange.values = share.totals
        if memory.batch_loss_weight:
            with ranks.same_draws(reports[0].seed, batch.refs.device):
                loss = memory.batch_loss_weight * loss_of_batch(memory.loss, memory.miner, whole)
    share.totals = exchange.by_rank.sum(dim=0)
    value, gradients = share.value()
    # Of which the mean over ranks is taken.
    known = value, [len(reports) * gradient for gradient in gradients]
    of_memory: Tensor = KnownGradients.apply(known, *share.inputs)
    return loss + of_memory


def _loss_sharded(memory: Memory, batch: Batch, reports: list[ranks.Report], recipe: Recipe) -> Tensor:
    """Returns the loss of all anchors against rows that are spread; nothing is sent in the backward pass."""
    whole = ranks.with_all_anchors(batch, reports)
    contents = stored(memory, batch) if batch.is_stored else read_only(memory, batch)
    apart = whole._replace(anchors=whole.anchors.detach().requires_grad_(torch.is_grad_enabled()))
    compared = comparison(memory, apart, contents)
    loss = zero_loss(batch)
    if compared is not None:
        share = share_against(compared._replace(over_rows=OverShards(compared.rows)), recipe)
        value, gradients = share.value()
        if gradients:
            gradients[0] = ranks.reduce_scattered(gradients[0], [report.num_anchors for report in reports])
        loss = KnownGradients.apply((value, gradients), batch.anchors, *recipe.learned)
    weight = 1.0 if contents is None else memory.batch_loss_weight * batch.is_stored
    return loss + weight * loss_of_batch(memory.loss, memory.miner, whole) if weight else loss
