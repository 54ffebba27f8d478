"""One call of a memory that many ranks make together: they compute one loss, and each its part of it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._arithmetic import nan_unless_zero
from ..distributed import _ranks as ranks
from ..distributed._sharded_loss import sharded_loss
from ..memory._batch import Batch, zero_loss
from ..memory._placement import placement_of
from ..memory._queue import Contents
from ..pairwise._loss import LossSums, sum_terms, with_known_gradients
from ..pairwise._supported import FusedLoss, fused_loss_of
from ._step import (
    adapt_and_store,
    compare,
    comparison,
    count_call,
    fill,
    is_delayed,
    is_warming_up,
    loss_of_batch_alone,
    read_contents,
    zero_if_batch_is_finite,
)

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory


def loss_on_ranks(memory: Memory, batch: Batch, reports: list[ranks.Report]) -> Tensor:
    """Returns the loss of the batch of all ranks, with this rank's part of its gradient."""
    fused = fused_loss_of(memory.loss)
    if fused is not None and memory._is_sharded:
        return _loss_sharded(memory, batch, reports, fused)
    is_past_warmup = not is_warming_up(memory, count_call(memory.queue.contents))
    if fused is not None and is_past_warmup and all(report.can_share for report in reports):
        return _loss_gathered(memory, batch, reports, fused)
    whole = ranks.with_all_anchors(memory._group, batch, reports)
    with ranks.Exchange(memory._group):
        contents = _adapt_and_store_alike(memory, whole)
        with ranks.same_draws(reports[0].seed, batch.refs.device):
            value = compare(memory, whole, contents)
        memory.queue.check_writes()  # here, so that all ranks raise
    return value


def fill_on_ranks(memory: Memory, batch: Batch) -> None:
    """Stores the batch of all ranks on all, or on none."""

    def fill_or_join_others(has_failed: bool) -> None:
        if has_failed:
            _join_others(memory, batch, is_fill=True)
        else:
            fill(memory, batch)
            memory.queue.will_be_alike()

    _, error = memory._group.attempt(fill_or_join_others)
    with ranks.Exchange(memory._group):
        if error is not None:
            raise error


def _loss_gathered(memory: Memory, batch: Batch, reports: list[ranks.Report], fused: FusedLoss) -> Tensor:
    """Returns the loss, each rank computes its own anchors' terms."""
    group = memory._group
    whole = ranks.with_all_anchors(group, batch, reports) if memory.batch_loss_weight else batch
    loss, sums = batch.anchors.new_zeros(()), LossSums(fused, batch.anchors)
    with ranks.Exchange(group, len(sums.totals)) as exchange:
        compared = comparison(memory, batch, _adapt_and_store_alike(memory, batch))
        if compared is not None:
            sums = sum_terms(compared, fused)
            exchange.values = sums.totals
        if memory.batch_loss_weight:
            with ranks.same_draws(reports[0].seed, batch.refs.device):
                loss = memory.batch_loss_weight * loss_of_batch_alone(memory, whole)
        memory.queue.check_writes()  # here, so that all ranks raise
    sums.totals = exchange.by_rank.sum(dim=0)
    return loss + sums.with_graph(num_ranks=len(reports))


def _loss_sharded(memory: Memory, batch: Batch, reports: list[ranks.Report], fused: FusedLoss) -> Tensor:
    """Returns the loss of all anchors against rows that are spread; nothing is sent in the backward pass."""
    group = memory._group
    whole = ranks.with_all_anchors(group, batch, reports)
    detached = whole._replace(anchors=whole.anchors.detach().requires_grad_(torch.is_grad_enabled()))

    def compute(has_failed: bool) -> tuple[Tensor | None, list[Tensor], Tensor | None]:
        """Returns the loss against the rows, its gradients, and the loss of the batch alone, if any."""
        if has_failed:
            contents = _join_others(memory, batch)
        else:
            contents = (_adapt_and_store_alike if batch.is_stored else read_contents)(memory, batch)
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

    # If it fails, it is called once more without rows; sums that ranks have made already are not made again.
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


def _adapt_and_store_alike(memory: Memory, batch: Batch) -> Contents | None:
    """Does what ``adapt_and_store`` does, and notes that all ranks hold the same then."""
    contents = adapt_and_store(memory, batch)
    if contents is not None:
        memory.queue.will_be_alike()
    return contents


def _join_others(memory: Memory, batch: Batch, *, is_fill: bool = False) -> Contents | None:
    """Returns what ``adapt_and_store`` or ``read_contents`` does on a rank without rows, and stores nothing.

    It computes what ranks compute together, in the same order, and runs as little else as it can: a rank that
    has failed calls it.
    """
    memory.queue.undo_()
    before = memory.queue.contents
    rows: Any = before.rows
    if not memory._is_sharded:
        return before
    contents = before._replace(
        rows=rows.without_rows(), labels=before.labels[:0], ids=before.ids[:0], newest=None
    )
    if not batch.is_stored:
        return contents
    if not is_fill:
        contents = count_call(contents)
        if is_warming_up(memory, contents):
            return None
    num_queued = len(batch.refs)
    if batch.ids is not None and num_queued > 0:
        num_queued = placement_of(memory.queue, contents, batch.ids, batch.ref_labels).num_queued
    if not (is_fill or is_delayed(memory, contents)):
        refs = batch.refs.detach().to(contents.rows.dtype)
        with torch.no_grad():
            contents = contents._replace(
                rows=memory._hooks.join_sums_of_ranks(contents, refs, batch.ref_labels)
            )
    num_rows = min(int(contents.rows.num_rows) + num_queued, memory.queue.memory_size)
    newest = torch.zeros_like(batch.ref_labels)  # indices of other ranks
    return contents._replace(rows=contents.rows.counted(num_rows, 0), newest=newest)
