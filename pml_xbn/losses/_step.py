"""One call of a memory: input is checked, rows are adapted, the batch is stored, and its loss computed."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..memory._batch import Batch, zero_loss
from ..memory._queue import Contents
from ..memory._rows import Rows
from ..memory._samples import averaged, placement_of, with_samples
from ..pairwise import (
    Comparison,
    IndicesTuple,
    appended,
    chosen_pairs,
    drop_own_rows,
    loss_against,
    mapped,
)
from ._input import are_storable, check_embeddings, check_num_rows, refused_indices, split
from .batch_loss import loss_of_batch

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory

Result = TypeVar("Result")


def checked(
    memory: Memory,
    embeddings: Tensor,
    labels: Tensor,
    user_pairs: IndicesTuple | None,
    mask: Tensor | None,
    ids: Tensor | None,
    is_stored: bool,
) -> tuple[Batch, bool]:
    """Returns the batch, and whether it is to be stored; nothing has changed if this raises.

    Embeddings take the rows' dtype if that is more precise.
    """
    rows = memory.queue.settled().rows
    if user_pairs is not None and memory._is_sharded:
        raise ValueError("indices_tuple with shard_distributed=True: pass a miner, or use gather_distributed")
    if is_stored and memory.update == "average" and ids is None:
        raise ValueError(
            "update='average' averages the rows of a sample: pass sample_ids, of every image its number in "
            "the data set, or -1"
        )
    check_embeddings(embeddings, rows.stored.shape[1])
    if embeddings.dtype != torch.float64:
        embeddings = embeddings.to(rows.dtype)
    batch, device, is_due = split(embeddings, labels, user_pairs, mask, ids), embeddings.device, False
    if is_stored:
        check_num_rows(len(batch.refs), rows.num_places)
    if is_stored and memory.nonfinite != "ignore":
        refusals = memory._hooks.refusals(batch.ref_labels)
        if user_pairs is not None:
            refusals.append(refused_indices(user_pairs, len(embeddings), device))
        is_out = rows.is_out_of_range() if rows.stored.device == device else None
        can_skip = memory.nonfinite == "skip"
        is_stored, is_due = are_storable(embeddings, rows.dtype, refusals, is_out, skip=can_skip)
    if len(rows) == 0 and not (is_stored or memory.training):
        _warn_of_eval(embeddings)
    memory.queue.on(device)  # which may be out of memory
    if is_due:
        memory.queue.store_anew_in_step()
    return batch, is_stored


def stored(memory: Memory, batch: Batch, *, is_fill: bool = False) -> Contents | None:
    """Returns what the memory holds with the batch, which it adapts its rows to; None while it warms up.

    The batch takes the place of the oldest rows, or of its samples' rows. A fill stores at once, unadapted.
    """
    contents, hooks, labels = memory.queue.contents, memory._hooks, batch.row_labels
    if contents.num_calls < memory.warmup and not is_fill:
        return None
    contents = contents.begun()
    is_adapting = contents.num_calls >= memory.warmup + memory.delay
    rows = batch.rows.to(contents.rows.dtype)
    placement = None if batch.ids is None else placement_of(contents, batch.ids, labels)
    if is_adapting and not is_fill:
        arguments = contents.rows, contents.row_labels, rows, labels, placement
        with torch.no_grad():
            adapted = hooks.adapted(*arguments, allow_nonfinite=memory.nonfinite == "ignore")
            if memory.normalize_memory:
                unit_rows = normalize(adapted.read(rows.dtype))
                adapted = Rows.of(unit_rows, adapted.num_places, adapted.stored.dtype)
        contents = contents._replace(rows=adapted)
    if batch.ids is None or placement is None:
        contents = contents.put(rows, labels)
    else:
        if memory.update == "average":
            rows = averaged(rows, contents.rows, placement, memory.update_momentum)
        contents = with_samples(contents, placement, rows, labels, batch.ids)
    memory.queue.contents = contents
    return contents


def loss_with_memory(memory: Memory, batch: Batch, contents: Contents | None) -> Tensor:
    """Returns the loss of the batch against the memory that holds it, or alone while that warms up."""
    if contents is None:
        return loss_alone(memory, batch)
    compared = comparison(memory, batch, contents)
    loss = zero_loss(batch) if compared is None else loss_against(compared)
    if memory.batch_loss_weight:
        loss = loss + memory.batch_loss_weight * loss_alone(memory, batch)
    return loss


def comparison(memory: Memory, batch: Batch, contents: Contents) -> Comparison | None:
    """Returns the batch against the memory that holds it; None if there are no pairs."""
    rows = contents.rows
    if len(batch.anchors) == 0 or len(rows) == 0 or contents.newest is None:
        return None
    own_rows = contents.newest[batch.first_row : batch.first_row + len(batch.refs)]  # of this rank
    user_pairs = None if batch.user_pairs is None else mapped(batch.user_pairs, own_rows)
    if user_pairs is not None and batch.ids is not None:  # rows of one sample share a place
        user_pairs = drop_own_rows(user_pairs, own_rows)
    anchors = batch.anchors, batch.anchor_labels
    own = own_rows if batch.is_own else None
    return Comparison(memory.loss, memory.miner, *anchors, rows, contents.row_labels, own, user_pairs)


def loss_alone(memory: Memory, batch: Batch) -> Tensor:
    """Returns the loss of the batch as if there were no memory."""
    return loss_of_batch(memory.loss, memory.miner, batch)


def loss_against_stored(memory: Memory, batch: Batch) -> Tensor:
    """Returns the loss of a batch that is not stored, against the memory as it is."""
    user_pairs, rows, labels = batch.user_pairs, memory.queue.contents.rows, memory.queue.contents.row_labels
    if len(batch.anchors) == 0 or len(rows) == 0:
        return zero_loss(batch) if user_pairs is None else loss_of_batch(memory.loss, memory.miner, batch)
    compared = Comparison(memory.loss, memory.miner, batch.anchors, batch.anchor_labels, rows, labels)
    if user_pairs is None:
        return loss_against(compared)
    # Not stored, so the given pairs find their rows of the batch behind those of the memory.
    batch_rows = torch.arange(len(rows), len(rows) + len(batch.refs), device=labels.device)
    lists = appended(chosen_pairs(compared), mapped(user_pairs, batch_rows), batch.anchor_labels)
    values = torch.cat([rows.read(batch.refs.dtype), batch.refs.detach()])
    rows, labels = Rows.of(values, len(values), values.dtype), torch.cat([labels, batch.ref_labels])
    return loss_against(compared._replace(miner=lambda *_: lists, rows=rows, row_labels=labels))


def _warn_of_eval(embeddings: Tensor) -> None:
    """Warns of a loss that is wanted for training while an empty memory is in ``eval()`` mode."""
    if torch.is_grad_enabled() and embeddings.requires_grad:
        warnings.warn(
            "the memory is empty and in eval() mode, in which it stores nothing, so that the loss stays "
            "0; to train, call train() on the loss after eval() on a module that holds it",
            stacklevel=4,
        )


def eager(function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns the function as one that runs as it is written in a compiled module too.

    ``torch.compiler.disable`` as a decorator would import all of Dynamo along with the package, which takes
    seconds. Where nobody has imported it yet, nobody compiles.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        result: Result = torch.compiler.disable(function)(*args, **kwargs)
        return result

    return call
