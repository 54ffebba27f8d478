"""One call of a memory, on one process or many: rows are adapted, the batch stored, its loss computed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..distributed._collectives import Exchange, reduce_scattered, same_draws
from ..distributed._global_batch import Report, with_all_anchors
from ..distributed._over_shards import OverShards
from ..memory._batch import Batch, zero_loss
from ..memory._queue import Contents
from ..memory._rows import Rows
from ..memory._samples import averaged, placement_of, with_samples
from ..pairwise._forms import Recipe, recipe_of
from ..pairwise._loss import Comparison, KnownGradients, Share, loss_against, share_against
from ..pairwise._pairs import drop_own_rows, mapped
from .batch_loss import loss_of_batch

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory


def stored(memory: Memory, batch: Batch, *, is_fill: bool = False) -> Contents | None:
    """Returns what the memory holds with the batch, which it adapts its rows to; None while it warms up.

    The batch takes the place of the oldest rows, or of its samples' rows. A fill stores at once, unadapted,
    and is not counted as a call.
    """
    contents, hooks, labels = memory.queue.contents, memory._hooks, batch.ref_labels
    num_calls = contents.num_calls
    if not is_fill:
        contents = contents._replace(num_calls=num_calls + 1)
        if num_calls < memory.warmup:
            memory.queue.contents = contents
            return None
    if contents.rows.is_due:  # in a tensor of their own, as the step may fail
        new = torch.zeros_like(contents.rows.stored)
        contents = contents._replace(rows=contents.rows.stored_anew(new))
    rows = batch.refs.detach().to(contents.rows.dtype)
    placement = None if batch.ids is None else placement_of(contents, batch.ids, labels)
    if num_calls >= memory.warmup + memory.delay and not is_fill:
        hooks.returning = () if placement is None else (placement.stored_at, placement.returning)
        with torch.no_grad():
            adapted = hooks.adapted(contents, rows, labels, allow_nonfinite=memory.nonfinite == "ignore")
            if memory.normalize_memory:
                unit_rows = normalize(adapted.read(rows.dtype))
                adapted = Rows.of(unit_rows, adapted.num_places, adapted.stored.dtype)
        hooks.returning = None
        contents = contents._replace(rows=adapted)
    if batch.ids is None or placement is None:
        contents = contents.put(rows, labels)
    else:
        if memory.update == "average":
            rows = averaged(rows, contents.rows, placement, memory.update_momentum)
        contents = with_samples(contents, placement, rows, labels, batch.ids)
    memory.queue.hold(contents)
    return contents


def read_only(memory: Memory, batch: Batch) -> Contents:
    """Returns what the memory holds, and behind it a batch of which pairs are given."""
    contents = memory.queue.contents
    if batch.user_pairs is None:
        return contents._replace(newest=None)
    size, labels = contents.rows.num_rows, torch.cat([contents.row_labels, batch.ref_labels])
    values = torch.cat([contents.rows.read(batch.refs.dtype), batch.refs.detach()])
    newest = torch.arange(size, len(labels), device=labels.device)
    rows = Rows.of(values, len(values), values.dtype)
    return contents._replace(rows=rows, labels=labels, newest=newest)


def loss_with_memory(memory: Memory, batch: Batch, contents: Contents | None) -> Tensor:
    """Returns the loss of the batch against these contents, or alone while the memory warms up."""
    if contents is None:
        return loss_of_batch(memory.loss, memory.miner, batch)
    compared = comparison(memory, batch, contents)
    loss = zero_loss(batch) if compared is None else loss_against(compared)
    if memory.batch_loss_weight and batch.is_stored:
        loss = loss + memory.batch_loss_weight * loss_of_batch(memory.loss, memory.miner, batch)
    return loss


def comparison(memory: Memory, batch: Batch, contents: Contents | None) -> Comparison | None:
    """Returns the anchors against the rows of these contents; None if there are none."""
    if contents is None or len(batch.anchors) == 0 or len(contents.rows) == 0:
        return None
    rows, own_rows, user_pairs = contents.rows, None, None
    if contents.newest is not None and batch.own is not None:
        own_rows = contents.newest[batch.own]
        if batch.user_pairs is not None:
            user_pairs = mapped(batch.user_pairs, own_rows)
            if batch.ids is not None:  # rows of one sample share a place
                user_pairs = drop_own_rows(user_pairs, own_rows)
    anchors = batch.anchors, batch.anchor_labels
    return Comparison(memory.loss, memory.miner, *anchors, rows, contents.row_labels, own_rows, user_pairs)


def loss_on_ranks(memory: Memory, batch: Batch, reports: list[Report]) -> Tensor:
    """Returns the loss of the batch of all ranks, with this rank's part of its gradient."""
    recipe, is_warming_up = recipe_of(memory.loss), memory.queue.contents.num_calls < memory.warmup
    if recipe is not None and memory._is_sharded:
        return _loss_on_shards(memory, batch, reports, recipe)
    if recipe is not None and not is_warming_up and all(report.can_share for report in reports):
        return _loss_of_shares(memory, batch, reports, recipe)
    whole = with_all_anchors(batch, reports)
    with Exchange():
        contents = stored(memory, whole)
        with same_draws(reports[0].seed, batch.refs.device):
            return loss_with_memory(memory, whole, contents)


def _loss_of_shares(memory: Memory, batch: Batch, reports: list[Report], recipe: Recipe) -> Tensor:
    """Returns the loss, of which every rank computes the terms of its own anchors."""
    whole = with_all_anchors(batch, reports) if memory.batch_loss_weight else batch
    loss, share = batch.anchors.new_zeros(()), Share(memory.loss, recipe, batch.anchors)
    with Exchange(len(share.totals)) as exchange:
        compared = comparison(memory, batch, stored(memory, batch))
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
    apart = whole._replace(anchors=whole.anchors.detach().requires_grad_(torch.is_grad_enabled()))
    compared = comparison(memory, apart, contents)
    loss = zero_loss(batch)
    if compared is not None:
        share = share_against(compared._replace(over_rows=OverShards(compared.rows)), recipe)
        value, gradients = share.value()
        if gradients:
            gradients[0] = reduce_scattered(gradients[0], [report.num_anchors for report in reports])
        loss = KnownGradients.apply((value, gradients), batch.anchors, *recipe.learned)
    weight = 1.0 if contents is None else memory.batch_loss_weight * batch.is_stored
    return loss + weight * loss_of_batch(memory.loss, memory.miner, whole) if weight else loss


def eager(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns the function as one that runs as it is written in a compiled module too."""

    # As a decorator, torch.compiler.disable would import Dynamo, which takes seconds, along with the package.
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_compiling = "torch._dynamo" in sys.modules
        return (torch.compiler.disable(function) if is_compiling else function)(*args, **kwargs)

    return call
