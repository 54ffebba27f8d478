"""One call of a memory that many ranks make together: they compute one loss, and each its part of it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..distributed import _ranks as ranks
from ..distributed._sharded_loss import sharded_loss
from ..memory._batch import Batch, zero_loss
from ..memory._placement import placement_of
from ..memory._queue import Contents
from ..pairwise._finite import nan_unless_zero
from ..pairwise._loss import LossSums, sum_terms, with_known_gradients
from ..pairwise._supported import FusedLoss, fused_loss_of
from ._memory import Memory
from ._step import (
    adapt_rows,
    compare,
    comparison,
    count_call,
    find_places,
    is_warming_up,
    loss_of_batch_alone,
    read_contents,
    store_batch,
    zero_if_batch_is_finite,
)


def loss_on_ranks(memory: Memory, batch: Batch, reports: list[ranks.Report]) -> Tensor:
    """Returns the loss of the batch of all ranks, with this rank's part of its gradient."""
    fused = fused_loss_of(memory.loss)
    if fused is not None and memory._is_sharded:
        return _loss_sharded(memory, batch, reports, fused)
    if fused is not None and not is_warming_up(memory) and all(report.can_share for report in reports):
        return _loss_gathered(memory, batch, reports, fused)
    whole = ranks.with_all_anchors(memory._group, batch, reports)
    with ranks.Exchange(memory._group):
        contents = _adapt_and_store(memory, whole)
        with ranks.same_draws(reports[0].seed, batch.refs.device):
            return compare(memory, whole, contents)


def fill_on_ranks(memory: Memory, batch: Batch) -> None:
    """Stores the batch of all ranks on all, or on none."""
    before = _begin(memory)

    def fill(has_failed: bool) -> None:
        if has_failed:
            _take_part(memory, batch, before, is_fill=True)
        else:
            store_batch(memory, batch, *find_places(memory, batch))

    _, error = memory._group.attempt(fill)
    with ranks.Exchange(memory._group):
        if error is not None:
            raise error


def _loss_gathered(memory: Memory, batch: Batch, reports: list[ranks.Report], fused: FusedLoss) -> Tensor:
    """Returns the loss, each rank computes its own anchors' terms."""
    group = memory._group
    whole = ranks.with_all_anchors(group, batch, reports) if memory.batch_loss_weight else batch
    loss, sums = batch.anchors.new_zeros(()), LossSums(fused, batch.anchors)
    with ranks.Exchange(group, len(sums.totals)) as exchange:
        compared = comparison(memory, batch, _adapt_and_store(memory, batch))
        if compared is not None:
            sums = sum_terms(compared, fused)
            exchange.values = sums.totals
        if memory.batch_loss_weight:
            with ranks.same_draws(reports[0].seed, batch.refs.device):
                loss = memory.batch_loss_weight * loss_of_batch_alone(memory, whole)
    sums.totals = exchange.by_rank.sum(dim=0)
    return loss + sums.with_graph(num_ranks=len(reports))


def _loss_sharded(memory: Memory, batch: Batch, reports: list[ranks.Report], fused: FusedLoss) -> Tensor:
    """Returns the loss of all anchors against rows that are spread; nothing is sent in the backward pass."""
    group, before = memory._group, _begin(memory)
    whole = ranks.with_all_anchors(group, batch, reports)
    detached = whole._replace(anchors=whole.anchors.detach().requires_grad_(torch.is_grad_enabled()))

    def compute(has_failed: bool) -> tuple[Tensor | None, list[Tensor], Tensor | None]:
        """Returns the loss against the rows, its gradients, and the loss of the batch alone, if any."""
        if has_failed:
            contents = _take_part(memory, batch, before)
        else:
            contents = (_adapt_and_store if batch.is_stored else read_contents)(memory, batch)
        compared, value, of_batch = comparison(memory, detached, contents), None, None
        gradients: list[Tensor] = []
        if compared is not None:
            value, gradients = sharded_loss(compared, fused)
        weight = memory.batch_loss_weight if batch.is_stored else 0.0
        if contents is None:  # in the warm-up, where the loss is the batch's own
            weight = 1.0
        if weight and not has_failed:
            of_batch = weight * loss_of_batch_alone(memory, whole)
        return value, gradients, of_batch

    (value, gradients, of_batch), error = group.attempt(compute)
    if gradients:
        sizes = [report.num_anchors for report in reports]
        gradients[0], have_failed = group.sum_and_scatter(gradients[0], sizes, error is not None)
        if any(have_failed):
            ranks.raise_on_all(group, error)
    with ranks.Exchange(group) if not gradients else nullcontext():
        if error is not None:
            raise error
    loss = zero_loss(batch)
    if value is not None:
        loss = with_known_gradients(value, gradients, [batch.anchors, *fused.learned])
    if value is None or not batch.is_stored:  # so that not all of the batch has been compared
        loss = nan_unless_zero(loss, zero_if_batch_is_finite(whole))
    return loss if of_batch is None else loss + of_batch


def _adapt_and_store(memory: Memory, batch: Batch) -> Contents | None:
    """Returns what the memory holds once the batch is stored in it; None while it warms up."""
    if is_warming_up(memory):
        count_call(memory)
        return None
    return store_batch(memory, batch, *adapt_rows(memory, batch))


def _begin(memory: Memory) -> Contents:
    """Returns what the memory holds, without anything that one rank may have computed and another not.

    A step that failed on one of them may have left it: the sums over all ranks, which are cached. A copy of
    the rows has forgotten them.
    """
    contents = memory.queue.contents
    memory.queue.contents = contents._replace(rows=replace(contents.rows))
    return memory.queue.contents


def _take_part(memory: Memory, batch: Batch, before: Contents, *, is_fill: bool = False) -> Contents | None:
    """Returns what ``_adapt_and_store`` or ``read_contents`` does on a rank without rows, and stores nothing.

    It computes what ranks compute together, in the same order, and runs as little else as it can: a rank that
    has failed calls it.
    """
    before_rows: Any = before.rows
    if not memory._is_sharded:
        return before
    contents = before._replace(
        rows=before_rows.without_rows(), labels=before.labels[:0], ids=before.ids[:0], newest=None
    )
    if not batch.is_stored:
        return contents
    if before.num_calls < memory.warmup and not is_fill:
        return None
    if contents.rows.needs_whitening:  # whose moments are those of all
        contents.rows.moments()
        contents = contents._replace(rows=replace(contents.rows))
    num_queued = len(batch.refs)
    if batch.ids is not None and num_queued > 0:
        num_queued = placement_of(contents, batch.ids, batch.ref_labels).num_queued
    if before.num_calls >= memory.warmup + memory.delay and not is_fill:
        rows = batch.refs.detach().to(contents.rows.dtype)
        with torch.no_grad():
            contents = contents._replace(rows=memory._hooks.take_part(contents, rows, batch.ref_labels))
    count = min(len(contents.rows) + num_queued, contents.rows.num_places)
    newest = torch.zeros_like(batch.ref_labels)  # places of other ranks
    return contents._replace(rows=replace(contents.rows, count=count), newest=newest)
