"""A memory's call on many ranks, each of which holds all rows, or a shard of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..distributed._collectives import Exchange, reduce_scattered, same_draws
from ..distributed._global_batch import Report, reported, with_all_anchors, with_all_refs
from ..distributed._over_shards import OverShards
from ..memory._batch import Batch
from ..memory._hooks import transaction
from ..pairwise._forms import Recipe, recipe_of
from ..pairwise._loss import KnownGradients, Share, share_against
from ..pairwise._supported import recipe_to_share
from ._input import checked, too_many_rows
from ._step import comparison, loss_with_memory, read_only, stored
from .batch_loss import loss_of_batch

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory


def loss_on_ranks(memory: Memory, *arguments: Any) -> Tensor:
    """Returns the loss of the batch of all ranks, with this rank's part of its gradient.

    Args:
        arguments: those of :func:`checked`, the last of which is whether the memory is in training.
    """
    is_sharded = memory._is_sharded
    recipe = recipe_of(memory.loss) if is_sharded else recipe_to_share(memory.loss, memory.miner)
    batch, reports = _checked_on_ranks(memory, *arguments, can_share=recipe is not None)
    with torch.autocast(batch.refs.device.type, enabled=False), transaction(memory.queue, memory._hooks):
        if is_sharded:
            assert recipe is not None  # has been checked
            return _loss_on_shards(memory, batch, reports, recipe)
        if not batch.is_stored:  # every rank is by itself
            return loss_with_memory(memory, batch, read_only(memory, batch))
        is_warming_up = memory.queue.contents.num_calls < memory.warmup
        if recipe is not None and not is_warming_up and all(report.can_share for report in reports):
            return _loss_of_shares(memory, batch, reports, recipe)
        whole = with_all_anchors(batch, reports)
        with Exchange():
            contents = stored(memory, whole)
            with same_draws(reports[0].seed, batch.refs.device):
                return loss_with_memory(memory, whole, contents)


def fill_on_ranks(memory: Memory, *arguments: Any) -> None:
    """Stores the rows of all ranks; arguments as for :func:`loss_on_ranks`."""
    batch, _ = _checked_on_ranks(memory, *arguments)
    if batch.is_stored:
        with transaction(memory.queue, memory._hooks):
            stored(memory, batch, is_fill=True)


def _checked_on_ranks(memory: Memory, *arguments: Any, can_share: bool = False) -> tuple[Batch, list[Report]]:
    """Returns this rank's batch, with what all ranks store if they do, and what they tell of theirs.

    If :func:`checked` raises on one rank, this raises on all.
    """
    contents = memory.queue.contents
    batch, reports = reported(
        lambda: checked(memory, *arguments),
        can_share,
        memory_size=contents.rows.num_places,
        num_rows=len(contents.rows),
        queue_idx=contents.position,
        num_calls=contents.num_calls,
        training=arguments[-1],
        is_grad_enabled=torch.is_grad_enabled(),
    )
    batch = batch._replace(is_stored=all(report.is_stored for report in reports))
    if not (batch.is_stored or memory._is_sharded):
        return batch, reports
    batch = with_all_refs(batch, reports)
    if len(batch.refs) > contents.rows.num_places:
        raise too_many_rows(len(batch.refs), contents.rows.num_places)
    return batch, reports


def _loss_of_shares(memory: Memory, batch: Batch, reports: list[Report], recipe: Recipe) -> Tensor:
    """Returns the loss, of which every rank computes the terms of its own anchors."""
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


def _loss_on_shards(memory: Memory, batch: Batch, reports: list[Report], recipe: Recipe) -> Tensor:
    """Returns the loss of the batch of all ranks against rows that are spread over them.

    Every rank compares the anchors of all with its own rows, the reductions over rows are merged, and each
    rank gets the sum of the gradients of its own anchors: nothing is sent in the backward pass.
    """
    whole = with_all_anchors(batch, reports)
    contents = stored(memory, batch) if batch.is_stored else read_only(memory, batch)
    anchors = whole.anchors.detach().requires_grad_(torch.is_grad_enabled())
    apart = whole._replace(anchors=anchors)
    compared = None if contents is None else comparison(memory, apart, contents)
    if compared is None:
        share = Share(memory.loss, recipe, anchors)
        share.begin()
    else:
        share = share_against(compared._replace(over_rows=OverShards(compared.rows)), recipe)
    value, gradients = share.value()
    weight = 1.0 if contents is None else memory.batch_loss_weight * batch.is_stored
    loss = weight * loss_of_batch(memory.loss, memory.miner, whole) if weight else value.new_zeros(())
    if gradients:
        gradients[0] = reduce_scattered(gradients[0], [report.num_anchors for report in reports])
    of_memory: Tensor = KnownGradients.apply((value, gradients), batch.anchors, *recipe.learned)
    return loss + of_memory
