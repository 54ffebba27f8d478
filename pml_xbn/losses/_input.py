"""One call's input: its checks, every error of which names the value and the remedy, and its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._tensor_checks import check_integers, check_mask, check_rows, plain
from ..distributed._ranks import Report, is_distributed, reported, with_all_refs
from ..memory._batch import Batch
from ..pairwise._pairs import IndicesTuple
from ..pairwise._recipes import can_be_sharded, recipe_to_share

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory


def checked(memory: Memory, *arguments: Any) -> tuple[Batch, list[Report]]:
    """Returns a call's input, and whether to store it; nothing has changed if this raises.

    Where all ranks make the call together, it holds what all of them store, if they do, and comes with what
    each tells of its own, which is otherwise empty. If this raises on one rank, it raises on all.

    Args:
        arguments: those of :func:`_checked_here`, the last of which is whether the memory is in training.
    """
    is_training = arguments[-1]
    is_joint = memory._is_sharded or (is_training and memory.gather_distributed and is_distributed())
    if not is_joint:
        return _checked_here(memory, *arguments), []
    contents = memory.queue.contents
    batch, reports = reported(
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
    if not (batch.is_stored or memory._is_sharded):
        return batch, reports
    batch = with_all_refs(batch, reports)
    if len(batch.refs) > contents.rows.num_places:
        raise too_many_rows(len(batch.refs), contents.rows.num_places)
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
    rows = memory.queue.settled().rows
    if memory._is_sharded:
        check_sharded(memory)  # hooks may have come
        if user_pairs is not None:
            raise ValueError(
                "indices_tuple with shard_distributed=True: pass a miner, or use gather_distributed"
            )
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
            raise too_many_rows(len(batch.refs), rows.num_places)
        is_stored = memory.nonfinite == "ignore" or _are_storable(memory, embeddings, batch)
    memory.queue.on(embeddings.device)  # which may be out of memory
    return batch._replace(is_stored=is_stored)


def split(
    embeddings: Tensor,
    labels: Tensor,
    user_pairs: IndicesTuple | None,
    mask: Tensor | None = None,
    ids: Tensor | None = None,
) -> Batch:
    """Returns a call's input, split by its enqueue mask, once shapes and dtypes of all but embeddings fit."""
    size, device = len(embeddings), embeddings.device
    check_integers("labels", labels, size, "one label per embedding")
    labels = plain(labels).to(device, torch.int64).contiguous()
    if user_pairs is not None:
        _check_indices(user_pairs, size)
    if ids is not None:
        check_integers("sample_ids", ids, size, "one number per embedding, -1 where there is none")
        ids = plain(ids).to(device, torch.int64).clamp_min(-1).contiguous()
    if mask is None:
        return Batch(embeddings, labels, embeddings, labels, slice(0, size), user_pairs, ids)
    if user_pairs is not None:
        raise ValueError("indices_tuple and enqueue_mask are mutually exclusive: pass one of them")
    check_mask("enqueue_mask", mask, size)
    mask = plain(mask)
    refs, others = (x.nonzero().squeeze(1).to(device) for x in (mask, ~mask))
    ids = None if ids is None else ids[refs]
    return Batch(embeddings[others], labels[others], embeddings[refs], labels[refs], None, None, ids)


@torch.no_grad()
def _are_storable(memory: Memory, embeddings: Tensor, batch: Batch) -> bool:
    """Returns whether a batch may be stored, or raises; a GPU waits once for all that is checked."""
    rows = memory.queue.contents.rows
    refusals, is_out_of_range = memory._hooks.refusals(batch.ref_labels), rows.is_out_of_range()
    flags, messages = zip(*refusals, strict=True) if refusals else ((), ())
    extremes = embeddings.aminmax() if len(embeddings) else [embeddings.sum()] * 2
    # The rows may still be on the device that they were loaded on.
    is_due = embeddings.new_zeros(()) if is_out_of_range is None else is_out_of_range.to(embeddings.device)
    least, largest, is_due, *are_refused = torch.stack([*extremes, is_due, *flags]).tolist()
    for is_refused, message in zip(are_refused, messages, strict=True):
        if is_refused:
            raise ValueError(message())
    # A stored row may be as many times as far out as there are rows, so there is to be some room.
    limit = torch.finfo(rows.dtype).max * 2.0**-16
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


def _check_indices(user_pairs: IndicesTuple, size: int) -> None:
    if len(user_pairs) not in (3, 4):
        raise ValueError(
            f"indices_tuple has {len(user_pairs)} tensors: pass 3 (anchors, positives, negatives) "
            "or 4 (anchors, positives, anchors, negatives)"
        )
    for number, indices in enumerate(user_pairs):
        anchors = user_pairs[2 if len(user_pairs) == 4 and number > 1 else 0]
        check_integers("indices_tuple", indices, len(anchors), "as many positives and negatives as anchors")
        outside = indices[(indices < 0) | (indices >= size)]
        if len(outside):
            raise ValueError(
                f"indices_tuple has numbers {outside.unique().tolist()} for a batch of {size}: pass numbers "
                f"from 0 to {size - 1}"
            )


def too_many_rows(num_rows: int, memory_size: int) -> ValueError:
    return ValueError(
        f"{num_rows} rows to enqueue do not fit memory_size={memory_size}: pass smaller batches or build a "
        "larger memory"
    )


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
