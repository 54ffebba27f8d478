"""The stages of one call: rows are adapted, the batch is stored, and compared with the memory.

:func:`step` is the whole of it. Nothing in it reads a number of a GPU, so that it can be traced, compiled and
captured; but in a warm-up or delay the host counts the calls. What is not ours (hooks that are plain
functions, losses and miners that run by PML's code) and samples run in the same stages and may read what they
like.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._arithmetic import all_of, nan_unless_zero, widest, zero_if_finite
from .._tracing import is_tracing
from ..memory._batch import Batch, zero_loss
from ..memory._placement import Placement, average_rows, placement_of
from ..memory._queue import Contents
from ..memory._rows import plain_rows, rows_of
from ..pairwise._batch_loss import loss_of_batch, loss_without_pairs
from ..pairwise._loss import Comparison, loss_against, loss_within
from ..pairwise._pairs import IndicesTuple, drop_self_pairs, mapped
from ..pairwise._supported import fused_loss_of, is_fused_miner
from ._settings import weighted_sum

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory


def step(memory: Memory, batch: Batch) -> Tensor:
    """Returns the loss of a batch against the memory, which then holds the batch."""
    return compare(memory, batch, adapt_and_store(memory, batch))


@torch.no_grad()
def adapt_and_store(memory: Memory, batch: Batch) -> Contents | None:
    """Returns what the memory holds once the batch is stored in it; None while it warms up."""
    contents = count_call(memory.queue.contents, batch)
    if is_warming_up(memory, contents):
        memory.queue.set_pending(contents)
        return None
    contents = bring_rows_into_range(memory, contents)
    placement = find_indices(memory, batch, contents)
    refs = refs_to_store(memory, batch, contents)
    contents = adapt_rows(memory, batch, contents, placement, refs)
    return store_batch(memory, batch, contents, placement, refs)


@torch.no_grad()
def fill(memory: Memory, batch: Batch) -> None:
    """Stores a batch, and adapts and counts nothing."""
    contents = bring_rows_into_range(memory, memory.queue.contents)
    placement = find_indices(memory, batch, contents)
    store_batch(memory, batch, contents, placement, batch.refs.to(contents.rows.dtype))


def count_call(contents: Contents, batch: Batch | None = None) -> Contents:
    """Returns the contents after one more call, unless its batch is refused on its device."""
    one = 1 if batch is None or batch.is_accepted is None else batch.is_accepted
    return contents._replace(num_calls=contents.num_calls + one)


def is_warming_up(memory: Memory, contents: Contents) -> bool:
    """Returns whether a call, which has been counted, is one of the warm-up, which stores nothing."""
    return memory.warmup > 0 and not _is_past(memory, contents, memory.warmup)


def is_delayed(memory: Memory, contents: Contents) -> bool | Tensor:
    """Returns whether a call, which has been counted, stores rows and does not adapt them yet.

    A GPU is waited for until the delay is over. In a graph it is a 0-d tensor.
    """
    if memory.delay == 0:
        return False
    last = memory.warmup + memory.delay
    if is_tracing():
        return contents.num_calls <= last
    return not _is_past(memory, contents, last)


def _is_past(memory: Memory, contents: Contents, last: int) -> bool:
    """Returns whether a call, which has been counted, comes after call number ``last``.

    What the host has seen is kept, so that a GPU is not waited for in every later step, and a compiled step
    is not compiled again.
    """
    queue = memory.queue
    if queue.calls_over < last and int(contents.num_calls) > last:
        queue.calls_over = last
    return queue.calls_over >= last


def bring_rows_into_range(memory: Memory, contents: Contents) -> Contents:
    """Returns the contents, on a CPU with rows that are in range, and whether all are known to be finite.

    On a CPU rows that have become large are standardized. A GPU does not wait for a look in every step:
    ``Queue.store`` looks now and then.
    """
    rows = contents.rows
    if not rows.is_kept_in_range:
        return contents
    are_in_range = rows.are_in_range()
    if not are_in_range and rows.is_out_of_range():
        # In a tensor of their own, as the step may still fail.
        rows = rows.written_standardized_(torch.zeros_like(rows.stored))
    return contents._replace(rows=rows, are_finite=are_in_range and memory.nonfinite != "ignore")


def find_indices(memory: Memory, batch: Batch, contents: Contents) -> Placement | None:
    """Returns where a batch of samples goes. Without a placement it goes to the next indices of the queue."""
    if batch.ids is None or len(batch.ids) == 0:
        return None
    return placement_of(memory.queue, contents, batch.ids, batch.ref_labels)


def refs_to_store(memory: Memory, batch: Batch, contents: Contents) -> Tensor:
    """Returns the refs ``(b, d)`` in the rows' dtype, or in float64 where moments or u need it."""
    refs = batch.refs.to(contents.rows.dtype)
    return refs if contents.rows.sums is None and not memory._hooks.adapters else widest(refs)


def adapt_rows(
    memory: Memory, batch: Batch, contents: Contents, placement: Placement | None, refs: Tensor
) -> Contents:
    """Returns the contents with rows after all hooks, and at unit length if that is wished for.

    In the calls of ``delay`` the rows are as they were.
    """
    hooks, is_waiting = memory._hooks, is_delayed(memory, contents)
    if is_waiting is True:
        return contents
    if memory.normalize_memory or not hooks.has_only_adapters or hooks.collect_stats:
        contents = contents.with_number_on_host()  # in any case a GPU is waited for
    adapts = all_of(batch.is_accepted, ~is_waiting if isinstance(is_waiting, Tensor) else None)
    rows = hooks.adapt(
        contents,
        refs,
        batch.ref_labels,
        memory.queue.undo,
        returning=None if placement is None else (placement.stored_at, placement.returning),
        adapts=adapts,
        allow_nonfinite=memory.nonfinite == "ignore",
        show=lambda rows: memory.queue.set_pending(memory.queue.contents._replace(rows=rows)),
    )
    if memory.normalize_memory:
        rows = rows_of(normalize(rows.read(rows.dtype)), rows, len(rows.stored), rows.stored.dtype)
    return contents._replace(rows=rows)


def store_batch(
    memory: Memory, batch: Batch, contents: Contents, placement: Placement | None, refs: Tensor
) -> Contents:
    """Returns the contents with the batch among them, and gives them to the memory."""
    queue = memory.queue
    queue.check_writes()  # of the hooks
    if placement is None:
        size = refs.shape[0]
        indices = queue.next_indices(contents, size)
        contents = queue.store(contents, indices, refs, batch.ref_labels, None, size, batch.is_accepted)
    else:
        contents = _store_samples(memory, batch, contents, placement)
    queue.set_pending(contents)
    return contents


def _store_samples(memory: Memory, batch: Batch, contents: Contents, placement: Placement) -> Contents:
    """Returns the contents with a batch of samples, whose rows take the places of their samples."""
    assert batch.ids is not None  # as it has a placement
    rows = batch.refs.to(contents.rows.dtype)
    if memory.update == "average":
        rows = average_rows(rows, contents.rows, placement, memory.update_momentum)
    kept, indices = placement.kept, placement.indices
    labels, ids = batch.ref_labels[kept], batch.ids[kept]
    contents = memory.queue.store(contents, indices[kept], rows[kept], labels, ids, placement.num_queued)
    return contents._replace(newest=indices)


def compare(memory: Memory, batch: Batch, contents: Contents | None) -> Tensor:
    """Returns the loss of the batch against these contents, or without them that of the batch by itself."""
    if contents is None:
        return loss_of_batch_alone(memory, batch)
    compared = comparison(memory, batch, contents)
    fused, is_miner_fused = fused_loss_of(memory.loss), is_fused_miner(memory.miner)
    if fused is None or not is_miner_fused:
        memory.queue.snapshot_labels()
    loss = loss_without_pairs(memory.loss, batch) if compared is None else loss_against(compared, fused)
    if compared is None or not batch.is_stored:  # so that not all of the batch has been compared
        loss = nan_unless_zero(loss, zero_if_batch_is_finite(batch))
    if memory.batch_loss_weight and batch.is_stored:
        return weighted_sum(memory, loss, loss_of_batch_alone(memory, batch))
    return loss


def loss_of_batch_alone(memory: Memory, batch: Batch) -> Tensor:
    """Returns the loss of the batch by itself, NaN if the batch holds NaN or inf."""
    fused = fused_loss_of(memory.loss) if is_tracing() else None
    if fused is not None and batch.anchors.shape[0] == 0:
        return zero_loss(batch)
    if fused is not None:  # PML's code lists pairs, of which there are not as many in every step
        return loss_within(_comparison_within(memory, batch), fused)
    memory.queue.snapshot_labels()
    loss = loss_of_batch(memory.loss, memory.miner, batch, watchers=memory._watchers)
    return nan_unless_zero(loss, zero_if_batch_is_finite(batch))  # type: ignore[no-any-return]


def zero_if_batch_is_finite(batch: Batch) -> Tensor | float:
    """Returns zero, and NaN if the batch, on many ranks that of any of them, holds NaN or inf."""
    if not batch.is_finite:
        return torch.nan
    return zero_if_finite(batch.refs) if batch.own is not None else zero_if_finite(batch.refs, batch.anchors)


def comparison(memory: Memory, batch: Batch, contents: Contents | None) -> Comparison | None:
    """Returns the anchors against the rows of these contents; None where there is nothing to compare."""
    anchors, labels = batch.anchors, batch.anchor_labels
    if contents is None or anchors.shape[0] == 0 or contents.rows.is_empty:
        return None
    self_pairs = user_pairs = None
    if contents.newest is not None and batch.own is not None:
        is_all = anchors.shape[0] == contents.newest.shape[0]
        self_pairs = contents.newest if is_all else contents.newest[batch.own]
        user_pairs = _pairs_with_rows(batch, self_pairs)
    rows, row_labels = contents.rows, contents.row_labels
    return Comparison(
        memory.loss,
        memory.miner,
        anchors,
        labels,
        rows,
        row_labels,
        self_pairs,
        user_pairs,
        contents.are_finite,
        memory._watchers,
    )


def _comparison_within(memory: Memory, batch: Batch) -> Comparison:
    """Returns the anchors against themselves."""
    anchors, labels = batch.anchors, batch.anchor_labels
    rows, self_pairs = plain_rows(anchors.detach()), torch.arange(len(anchors), device=anchors.device)
    return Comparison(memory.loss, memory.miner, anchors, labels, rows, labels, self_pairs)


def _pairs_with_rows(batch: Batch, self_pairs: Tensor) -> IndicesTuple | None:
    """Returns the caller's pairs, if there are any, as pairs of the anchors with their rows in memory."""
    if batch.user_pairs is None:
        return None
    user_pairs = mapped(batch.user_pairs, self_pairs)
    if batch.ids is None:
        return user_pairs
    return drop_self_pairs(user_pairs, self_pairs)  # as rows of one sample share an index


def read_contents(memory: Memory, batch: Batch) -> Contents | None:
    """Returns what the memory holds, for a call that stores nothing; None while the memory warms up."""
    contents = memory.queue.contents.with_number_on_host()
    if is_warming_up(memory, count_call(contents)):
        return None
    if batch.user_pairs is not None:
        return _with_batch_behind(contents, batch)
    if contents.rows.is_empty and not (memory.training and torch.is_grad_enabled()):
        _warn_of_empty(memory)
    return contents._replace(newest=None)  # of this batch no row is stored


def _with_batch_behind(contents: Contents, batch: Batch) -> Contents:
    """Returns contents with the batch behind the rows, as the caller's pairs are pairs within the batch."""
    size, labels = contents.rows.most_rows_here, torch.cat([contents.row_labels, batch.ref_labels])
    values = torch.cat([contents.rows.read(batch.refs.dtype), batch.refs.detach()])
    newest = torch.arange(size, len(labels), device=labels.device)
    rows = plain_rows(values)
    return contents._replace(rows=rows, labels=labels, newest=newest)


def _warn_of_empty(memory: Memory) -> None:
    """Says, once a memory, that a loss of zero is that of no rows."""
    if memory._has_warned_of_empty:
        return
    memory._has_warned_of_empty = True
    warnings.warn(
        f"the memory of this {type(memory).__name__} is empty, and in eval() or without gradients nothing is "
        "stored: the loss is 0. Call fill_memory(embeddings, labels) or make a training step first",
        stacklevel=2,
    )
