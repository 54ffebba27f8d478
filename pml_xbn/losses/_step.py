"""One call of a memory: rows are adapted, the batch is stored, and its loss computed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..memory._batch import Batch, averaged, placement_of, zero_loss
from ..memory._queue import Contents
from ..memory._rows import Rows
from ..pairwise._loss import Comparison, loss_against
from ..pairwise._pairs import drop_own_rows, mapped
from .batch_loss import loss_of_batch

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory

Result = TypeVar("Result")


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
    placement = None
    if batch.ids is not None and len(batch.ids) > 0:
        placement = placement_of(contents, batch.ids, labels)
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
        contents = contents.put(contents.next_places(len(rows)), rows, labels, None, len(rows))
    else:
        if memory.update == "average":
            rows = averaged(rows, contents.rows, placement, memory.update_momentum)
        kept, places = placement.kept, placement.places
        contents = contents.put(
            places[kept], rows[kept], labels[kept], batch.ids[kept], placement.num_coming
        )._replace(newest=places)
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


def comparison(memory: Memory, batch: Batch, contents: Contents) -> Comparison | None:
    """Returns the anchors against the rows of these contents; None if there are no pairs."""
    rows, own_rows, user_pairs = contents.rows, None, None
    if len(batch.anchors) == 0 or len(rows) == 0:
        return None
    if contents.newest is not None and batch.own is not None:
        own_rows = contents.newest[batch.own]
        if batch.user_pairs is not None:
            user_pairs = mapped(batch.user_pairs, own_rows)
            if batch.ids is not None:  # rows of one sample share a place
                user_pairs = drop_own_rows(user_pairs, own_rows)
    anchors = batch.anchors, batch.anchor_labels
    return Comparison(memory.loss, memory.miner, *anchors, rows, contents.row_labels, own_rows, user_pairs)


def eager(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns the function as one that runs as it is written in a compiled module too."""

    # As a decorator, torch.compiler.disable would import Dynamo, which takes seconds, along with the package.
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        is_compiling = "torch._dynamo" in sys.modules
        result: Result = (torch.compiler.disable(function) if is_compiling else function)(*args, **kwargs)
        return result

    return call
