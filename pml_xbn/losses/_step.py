"""One call of a memory: input is checked, rows are adapted, the batch is stored, and its loss computed."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._tensor_checks import check_rows, plain
from ..distributed import _ranks as ranks
from ..memory._batch import Batch, averaged, placement_of
from ..memory._callers import check_caller
from ..memory._queue import Contents
from ..memory._rows import Rows
from ..pairwise._loss import Comparison, loss_against
from ..pairwise._pairs import IndicesTuple, drop_own_rows, mapped
from ..pairwise._recipes import can_be_sharded, recipe_to_share
from ._settings import check_queue, weighted_sum
from .batch_loss import loss_of_batch, loss_without_pairs, split

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory


def checked(memory: Memory, call: str, *arguments: Any) -> tuple[Batch, list[ranks.Report]]:
    """Returns a call's input; where ranks make it together, with what all store, and each one's report."""
    is_training, contents, group = arguments[-1], memory.queue.contents, memory._group
    if memory.shard_distributed and not memory._is_sharded and group.has_others:
        raise RuntimeError(
            f"this {type(memory).__name__} was built with shard_distributed=True when there were no ranks to "
            "spread its rows over: build it after init_process_group"
        )
    if not (memory._is_sharded or (is_training and memory.gather_distributed and group.has_others)):
        return _checked_here(memory, *arguments), []
    batch, reports = ranks.reported(
        group,
        f"{type(memory).__name__}.{call}",
        lambda: _checked_here(memory, *arguments),
        can_share=recipe_to_share(memory.loss, memory.miner) is not None,
        memory_size=contents.rows.num_places,
        num_rows=len(contents.rows),
        queue_idx=contents.position,
        num_calls=contents.num_calls,
        training=is_training,
        is_grad_enabled=torch.is_grad_enabled(),
    )
    batch = batch._replace(is_stored=all(report.is_stored for report in reports))
    if batch.is_stored or memory._is_sharded:
        batch = ranks.with_all_refs(group, batch, reports)
        if len(batch.refs) > contents.rows.num_places:
            raise _too_many_rows(len(batch.refs), contents.rows.num_places)
    return batch, reports


def _checked_here(
    memory: Memory,
    embeddings: Tensor,
    labels: Tensor,
    user_pairs: IndicesTuple | None,
    mask: Tensor | None,
    ids: Tensor | None,
    is_stored: bool,
) -> Batch:
    """Returns the input of this process. Embeddings take the rows' dtype if that is more precise."""
    check_caller(memory, is_stored=is_stored)
    rows = memory.queue.settled().rows
    check_queue(memory, memory.queue)
    if memory._is_sharded:
        check_sharded(memory)  # hooks may have come
        if user_pairs is not None:
            remedy = "pass a miner, or use gather_distributed"
            raise ValueError(f"indices_tuple with shard_distributed=True: {remedy}")
    if is_stored and memory.update == "average" and ids is None:
        raise ValueError(
            "update='average' averages the rows of a sample: pass sample_ids, of every image its number in "
            "the data set, or -1"
        )
    check_rows("embeddings", embeddings, width=rows.stored.shape[1])
    embeddings = plain(embeddings)
    if embeddings.dtype != torch.float64:
        embeddings = embeddings.to(rows.dtype)
    batch = split(embeddings, labels, user_pairs, mask, ids)
    if is_stored:
        if len(batch.refs) > rows.num_places:
            raise _too_many_rows(len(batch.refs), rows.num_places)
        is_stored = memory.nonfinite == "ignore" or _are_storable(memory, embeddings, batch)
    memory.queue.on(embeddings.device)  # which may be out of memory
    return batch._replace(is_stored=is_stored)


@torch.no_grad()
def _are_storable(memory: Memory, embeddings: Tensor, batch: Batch) -> bool:
    """Returns whether a batch may be stored, or raises; a GPU waits once for all that is checked."""
    rows = memory.queue.contents.rows
    refusals, is_out_of_range = memory._hooks.refusals(batch.ref_labels), rows.is_out_of_range()
    extremes = embeddings.aminmax() if len(embeddings) else [embeddings.sum()] * 2
    # The rows may still be on the device that they were loaded on.
    is_due = embeddings.new_zeros(()) if is_out_of_range is None else is_out_of_range.to(embeddings.device)
    flags, messages = zip(*refusals, strict=True) if refusals else ((), ())
    least, largest, is_due, *are_refused = torch.stack([*extremes, is_due, *flags]).tolist()
    for is_refused, message in zip(are_refused, messages, strict=True):
        if is_refused:
            raise ValueError(message())
    # A stored row may be as many times as far out as there are rows, so there is to be some room; and moments
    # are computed from squares.
    widest_number = torch.finfo(rows.scale.dtype).max
    limit = min(torch.finfo(rows.dtype).max, widest_number**0.5) * 2.0**-16
    if not (-limit <= least and largest <= limit):  # nor where there is NaN
        if memory.nonfinite == "skip":
            return False
        bad_rows = (~(embeddings.abs() <= limit)).any(dim=1).nonzero().flatten().tolist()
        raise ValueError(
            f"embeddings has NaN or inf in rows {bad_rows}, or numbers beyond {limit:.1e}: lower the "
            "learning rate or mend the data, or pass nonfinite='skip' to leave such batches out of the memory"
        )
    if is_due:
        memory.queue.contents = memory.queue.contents._replace(rows=replace(rows, is_due=True))
    return True


def _too_many_rows(num_rows: int, memory_size: int) -> ValueError:
    remedy = "pass smaller batches or build a larger memory"
    return ValueError(f"{num_rows} rows to enqueue do not fit memory_size={memory_size}: {remedy}")


def check_sharded(memory: Memory) -> None:
    """Refuses what needs all rows in one place."""
    if memory.gather_distributed or memory.normalize_memory or memory.update != "queue":
        raise ValueError(
            f"shard_distributed=True with gather_distributed={memory.gather_distributed}, normalize_memory="
            f"{memory.normalize_memory} and update={memory.update!r}, which need all rows in one place: pass "
            "False, False and 'queue', or gather_distributed=True instead"
        )
    if not can_be_sharded(memory.loss, memory.miner):
        names = " and a ".join(type(part).__name__ for part in (memory.loss, memory.miner))
        raise ValueError(
            f"shard_distributed=True with a {names}: pass a loss and a miner of docs/distributed.md, without "
            "a hook, a regularizer or statistics, or gather_distributed=True instead"
        )


def stored(memory: Memory, batch: Batch, *, is_fill: bool = False) -> Contents | None:
    """Returns what the memory holds with the batch, adapted to it if that is no fill; None in the warm-up."""
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


def read_only(memory: Memory, batch: Batch) -> Contents | None:
    """Returns what the memory holds, and behind it a batch of which pairs are given; None in the warm-up."""
    contents = memory.queue.contents
    if contents.num_calls < memory.warmup:
        return None
    if batch.user_pairs is None:
        if len(contents.rows) == 0:
            _warn_of_empty(memory)
        return contents._replace(newest=None)
    size, labels = contents.rows.num_rows, torch.cat([contents.row_labels, batch.ref_labels])
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


def loss_with_memory(memory: Memory, batch: Batch, contents: Contents | None) -> Tensor:
    """Returns the loss of the batch against these contents, or alone while the memory warms up."""
    if contents is None:
        return loss_of_batch(memory.loss, memory.miner, batch)
    compared = comparison(memory, batch, contents)
    loss = loss_without_pairs(memory.loss, batch) if compared is None else loss_against(compared)
    if memory.batch_loss_weight and batch.is_stored:
        return weighted_sum(memory, loss, loss_of_batch(memory.loss, memory.miner, batch))
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
