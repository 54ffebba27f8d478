"""The acts of one call: rows are adapted, the batch is stored, and compared with the memory."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..memory._batch import Batch
from ..memory._placement import Placement, average_rows, placement_of
from ..memory._queue import Contents
from ..memory._rows import Rows
from ..pairwise._batch_loss import loss_of_batch, loss_without_pairs
from ..pairwise._finite import nan_unless_zero, zero_if_finite
from ..pairwise._index_tensors import IndicesTuple, drop_self_pairs, mapped
from ..pairwise._loss import Comparison, loss_against
from ._memory import Memory
from ._settings import weighted_sum


def is_warming_up(memory: Memory) -> bool:
    """Returns whether calls store nothing yet."""
    return memory.queue.contents.num_calls < memory.warmup


def is_delayed(memory: Memory) -> bool:
    """Returns whether calls store rows and do not adapt them yet."""
    return memory.queue.contents.num_calls < memory.warmup + memory.delay


def warm_up(memory: Memory, batch: Batch) -> Tensor:
    """Counts a call of the warm-up, and returns the loss of the batch by itself."""
    count_call(memory)
    return loss_of_batch_alone(memory, batch)


def count_call(memory: Memory) -> None:
    """Counts a call that stores nothing."""
    contents = memory.queue.contents
    memory.queue.contents = contents._replace(num_calls=contents.num_calls + 1)


def adapt_rows(memory: Memory, batch: Batch) -> tuple[Contents, Placement | None]:
    """Returns what the memory holds once its rows are adapted to the batch, and where the batch goes.

    In the calls of ``delay`` the rows are as they were. Without a placement, the batch goes to the next
    places of the queue.
    """
    contents, placement = find_places(memory, batch)
    contents = contents._replace(num_calls=contents.num_calls + 1)
    if not is_delayed(memory):
        contents = contents._replace(rows=_run_hooks(memory, batch, contents, placement))
    return contents, placement


@torch.no_grad()
def store_batch(memory: Memory, batch: Batch, contents: Contents, placement: Placement | None) -> Contents:
    """Gives the memory these contents with the batch among them, and returns what it then holds."""
    if placement is None:
        rows, labels = batch.refs.to(contents.rows.dtype), batch.ref_labels
        contents = contents.put(contents.next_places(len(rows)), rows, labels, None, len(rows))
    else:
        contents = _put_samples(memory, batch, contents, placement)
    memory.queue.hold(contents)
    return contents


def compare(memory: Memory, batch: Batch, contents: Contents | None) -> Tensor:
    """Returns the loss of the batch against these contents, or without them that of the batch by itself."""
    if contents is None:
        return loss_of_batch_alone(memory, batch)
    compared = comparison(memory, batch, contents)
    loss = loss_without_pairs(memory.loss, batch) if compared is None else loss_against(compared)
    if compared is None or not batch.is_stored:  # so that not all of the batch has been compared
        loss = nan_unless_zero(loss, zero_if_batch_is_finite(batch))
    if memory.batch_loss_weight and batch.is_stored:
        return weighted_sum(memory, loss, loss_of_batch_alone(memory, batch))
    return loss


def loss_of_batch_alone(memory: Memory, batch: Batch) -> Tensor:
    """Returns the loss of the batch by itself, NaN if the batch holds NaN or inf."""
    loss = loss_of_batch(memory.loss, memory.miner, batch)
    return nan_unless_zero(loss, zero_if_batch_is_finite(batch))  # type: ignore[no-any-return]


def zero_if_batch_is_finite(batch: Batch) -> Tensor | float:
    """Returns zero, and NaN if the batch, on many ranks that of any of them, holds NaN or inf."""
    if not batch.is_finite:
        return torch.nan
    return zero_if_finite(batch.refs) if batch.own is not None else zero_if_finite(batch.refs, batch.anchors)


def comparison(memory: Memory, batch: Batch, contents: Contents | None) -> Comparison | None:
    """Returns the anchors against the rows of these contents; None where there is nothing to compare."""
    if contents is None or len(batch.anchors) == 0 or len(contents.rows) == 0:
        return None
    own_rows = user_pairs = None
    if contents.newest is not None and batch.own is not None:
        own_rows = contents.newest[batch.own]
        user_pairs = _pairs_with_rows(batch, own_rows)
    anchors, labels = batch.anchors, batch.anchor_labels
    rows, row_labels = contents.rows, contents.row_labels
    return Comparison(memory.loss, memory.miner, anchors, labels, rows, row_labels, own_rows, user_pairs)


def _pairs_with_rows(batch: Batch, own_rows: Tensor) -> IndicesTuple | None:
    """Returns the caller's pairs, if there are any, as pairs of the anchors with their rows in memory."""
    if batch.user_pairs is None:
        return None
    user_pairs = mapped(batch.user_pairs, own_rows)
    if batch.ids is None:
        return user_pairs
    return drop_self_pairs(user_pairs, own_rows)  # as rows of one sample share a place


def read_contents(memory: Memory, batch: Batch) -> Contents | None:
    """Returns what the memory holds, for a call that stores nothing; None while the memory warms up."""
    contents = memory.queue.contents
    if is_warming_up(memory):
        return None
    if batch.user_pairs is not None:
        return _with_batch_behind(contents, batch)
    if len(contents.rows) == 0:
        _warn_of_empty(memory)
    return contents._replace(newest=None)  # of this batch no row is stored


def _with_batch_behind(contents: Contents, batch: Batch) -> Contents:
    """Returns contents with the batch behind the rows, as the caller's pairs are pairs within the batch."""
    size, labels = contents.rows.num_rows_here, torch.cat([contents.row_labels, batch.ref_labels])
    values = torch.cat([contents.rows.read(batch.refs.dtype), batch.refs.detach()])
    newest = torch.arange(size, len(labels), device=labels.device)
    rows = Rows.of(values, len(values), values.dtype)
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


def find_places(memory: Memory, batch: Batch) -> tuple[Contents, Placement | None]:
    """Returns what the memory holds, ready to be adapted, and the places of the batch if it is of samples."""
    contents = memory.queue.contents
    if contents.rows.needs_whitening:
        # In a tensor of their own, as the step may still fail.
        new = torch.zeros_like(contents.rows.stored)
        contents = contents._replace(rows=contents.rows.whitened(new))
    if batch.ids is None or len(batch.ids) == 0:
        return contents, None
    return contents, placement_of(contents, batch.ids, batch.ref_labels)


@torch.no_grad()
def _run_hooks(memory: Memory, batch: Batch, contents: Contents, placement: Placement | None) -> Rows:
    """Returns the rows after all hooks, and at unit length if that is wished for."""
    hooks, rows = memory._hooks, batch.refs.detach().to(contents.rows.dtype)
    hooks.returning = () if placement is None else (placement.stored_at, placement.returning)
    allow_nonfinite = memory.nonfinite == "ignore"
    adapted = hooks.adapt(contents, rows, batch.ref_labels, allow_nonfinite=allow_nonfinite)
    if memory.normalize_memory:
        unit_rows = normalize(adapted.read(rows.dtype))
        adapted = Rows.of(unit_rows, adapted.num_places, adapted.stored.dtype)
    hooks.returning = None
    return adapted


def _put_samples(memory: Memory, batch: Batch, contents: Contents, placement: Placement) -> Contents:
    """Returns the contents with a batch of samples, whose rows take the places of their samples."""
    assert batch.ids is not None  # as it has a placement
    rows = batch.refs.to(contents.rows.dtype)
    if memory.update == "average":
        rows = average_rows(rows, contents.rows, placement, memory.update_momentum)
    kept, places = placement.kept, placement.places
    labels, ids = batch.ref_labels[kept], batch.ids[kept]
    contents = contents.put(places[kept], rows[kept], labels, ids, placement.num_queued)
    return contents._replace(newest=places)
