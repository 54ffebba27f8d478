"""A call's batch: what the call brings, and who calls, is checked before anything changes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._arithmetic import all_of
from .._checks import check_not_meta, check_not_transformed, check_rows, plain
from .._tracing import can_read, number
from ..distributed import _ranks as ranks
from ..memory._batch import Batch, split
from ..memory._findings import Found
from ..memory._queue import Queue
from ..memory._rows import read_dtype
from ..pairwise._pairs import IndicesTuple
from ..pairwise._supported import can_be_sharded, can_share, fused_loss_of, is_fused_miner

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory


def make_batch(
    memory: Memory,
    call: str,
    embeddings: Tensor,
    labels: Tensor,
    *,
    user_pairs: IndicesTuple | None = None,
    mask: Tensor | None = None,
    ids: Tensor | None = None,
    stores: bool,
) -> tuple[Batch, list[ranks.Report]]:
    """Returns the batch of a call: input that has been checked, with the memory moved to its device.

    Where ranks make the call together, the batch holds what all of them store, and a report of every rank
    comes with it. Without reports, this process goes on by itself.

    Args:
        memory: whose call it is.
        call: the name of the method that is called, for errors.
        embeddings: ``(b, d)``; they take the rows' dtype if that is more precise.
        labels: ``(b,)``.
        user_pairs: the caller's pairs or triplets within the batch.
        mask: ``(b,)``, which rows are stored; by default all are.
        ids: ``(b,)``, the rows' samples.
        stores: whether the call is to store its batch, as it does in training.
    """
    if memory.shard_distributed and not memory._is_sharded and memory._group.has_others:
        raise RuntimeError(
            f"this {type(memory).__name__} was built with shard_distributed=True when there were no ranks to "
            "spread its rows over: build it after init_process_group"
        )
    is_gathered = stores and memory.gather_distributed and memory._group.has_others
    is_shared = is_gathered or memory._is_sharded
    make_own = partial(
        _make_own_batch, memory, embeddings, labels, user_pairs, mask, ids, stores=stores, is_shared=is_shared
    )
    if not is_shared:
        return make_own(), []
    return _make_batch_of_ranks(memory, call, make_own, is_training=stores)


def _make_own_batch(
    memory: Memory,
    embeddings: Tensor,
    labels: Tensor,
    user_pairs: IndicesTuple | None,
    mask: Tensor | None,
    ids: Tensor | None,
    *,
    stores: bool,
    is_shared: bool,
) -> Batch:
    """Returns the batch of this process, which others may share."""
    check_caller(memory, stores=stores)
    queue = memory.queue
    queue.take_edits()
    check_queue(memory, queue)
    if memory._is_sharded:
        _check_shards(memory, user_pairs)
    if stores and memory.update == "average" and ids is None:
        raise ValueError(
            "update='average' averages the rows of a sample: pass sample_ids, of every image its number in "
            "the data set, or -1"
        )
    check_rows("embeddings", embeddings, width=queue.rows.shape[1])
    check_not_meta("embeddings", embeddings)
    check_not_transformed("embeddings", embeddings)
    embeddings = plain(embeddings)
    if embeddings.dtype != torch.float64:
        embeddings = embeddings.to(read_dtype(queue.dtype))
    batch = split(embeddings, labels, user_pairs, mask, ids)
    is_checked_later = stores and not is_shared and can_be_checked_later(memory, batch)
    if stores:
        check_size(batch.refs.shape[0], queue.memory_size)
        if not is_checked_later:
            batch = _check_on_host(memory, embeddings.detach(), batch)
    queue.move_to(embeddings.device)  # which may be out of memory
    if not stores:
        return batch._replace(is_stored=False)
    return check_on_device(memory, batch) if is_checked_later else batch


def check_queue(memory: Any, queue: Queue) -> None:
    """Refuses a queue that does not have the size or dtype that was set after it had been made."""
    for name, value in (("memory_size", queue.memory_size), ("memory_dtype", queue.dtype)):
        if getattr(memory, name) != value:
            raise ValueError(
                f"{name} was set to {getattr(memory, name)}, and the rows are stored with {value}: call "
                "reset_queue(), which empties the memory, or build another one and hand it the rows with "
                "fill_memory"
            )


def check_size(num_rows: int, memory_size: int) -> None:
    if num_rows > memory_size:
        remedy = "pass smaller batches or build a larger memory"
        raise ValueError(f"{num_rows} rows to enqueue do not fit memory_size={memory_size}: {remedy}")


def _check_on_host(memory: Memory, embeddings: Tensor, batch: Batch) -> Batch:
    """Returns the batch, with whether it is to be stored, or raises: for its numbers, or for its labels."""
    refusals = memory._hooks.refusals(batch.ref_labels)
    if memory.nonfinite == "ignore" and not refusals:
        return batch
    flags, messages = zip(*refusals, strict=True) if refusals else ((), ())
    extremes = embeddings.aminmax() if embeddings.shape[0] else [embeddings.sum()] * 2
    found = [*extremes, *flags]
    # A GPU is waited for once.
    least, largest, *are_refused = map(number, found if can_read(embeddings) else torch.stack(found))
    for message, is_refused in zip(messages, are_refused, strict=True):
        if is_refused:
            raise ValueError(message())
    limit = largest_storable(memory.queue)
    if memory.nonfinite == "ignore" or (-limit <= least and largest <= limit):  # False where there is NaN
        return batch
    if memory.nonfinite == "skip":
        is_finite = math.isfinite(least) and math.isfinite(largest)
        return batch._replace(is_stored=False, is_finite=is_finite)
    bad_rows = (~(embeddings.abs() <= limit)).any(dim=1).nonzero().flatten().tolist()
    raise ValueError(
        f"embeddings has NaN or inf in rows {bad_rows}, or numbers beyond {limit:.1e}: correct the "
        "data or lower the learning rate, or pass nonfinite='skip' to leave such batches out of the memory"
    )


@torch.no_grad()
def check_on_device(memory: Memory, batch: Batch) -> Batch:
    """Returns the batch, with whether its numbers and labels are accepted, which the host does not read.

    The memory remembers a refusal, and raises it when the host looks.
    """
    findings, are_small = memory.queue.findings, None
    if memory.nonfinite != "ignore":
        limit, own = largest_storable(memory.queue), batch.own is not None
        found = [x for x in ((batch.refs,) if own else (batch.refs, batch.anchors)) if x.shape[0] > 0]
        # False where there is NaN. By rows first, as torch.compile makes one kernel of that and of lengths.
        are_small = all_of(*(x.detach().abs().amax(dim=1).amax() <= limit for x in found))
        if are_small is not None:
            findings.add_("has_bad_numbers", ~are_small)
    are_known = all_of(*(~is_refused for is_refused, _ in memory._hooks.refusals(batch.ref_labels)))
    if are_known is not None:
        findings.add_("has_bad_labels", ~are_known)
    return batch._replace(is_accepted=all_of(are_small, are_known))


def can_be_checked_later(memory: Memory, batch: Batch) -> bool:
    """Returns whether a batch is checked on its device, so that a GPU need not wait.

    What needs numbers of the host waits anyway, and is checked before it: samples, hooks that are plain
    functions, losses and miners that run PML's code, and the loss of angles, which lists its pairs.
    """
    if can_read(batch.refs) or memory.nonfinite == "raise_at_once":  # first, as what follows looks at modules
        return False
    is_queued = batch.ids is None and batch.user_pairs is None and not memory.normalize_memory
    fused, is_fused = fused_loss_of(memory.loss), is_fused_miner(memory.miner)
    return (
        is_queued and memory._hooks.has_only_adapters and is_fused and fused is not None and fused.has_terms
    )


def settle_earlier_steps(memory: Memory, *, waits: bool) -> None:
    """Stores rows anew that have drifted in traced steps, and raises what steps have left to raise."""
    queue = memory.queue
    queue.standardize_after_traced_steps_()
    found = queue.findings.take_(waits=waits)
    queue.standardizing_is_due |= found.is_out_of_range
    raise_if_refused(memory, found)


def raise_if_refused(memory: Memory, found: Found) -> None:
    """Raises a ``ValueError`` for earlier batches that were refused on their device."""
    errors = []
    if found.has_bad_labels:
        errors.append(
            "an earlier batch had labels without a superclass, and was not stored: add them to superclasses, "
            "or pass nonfinite='raise_at_once' to see them in the call itself"
        )
    if found.has_bad_numbers and memory.nonfinite == "raise":
        errors.append(
            f"an earlier batch had NaN or inf, or numbers beyond {largest_storable(memory.queue):.1e}, and "
            "was not stored: correct the data or lower the learning rate, pass nonfinite='raise_at_once' to "
            "see it in the call itself, or nonfinite='skip' to leave such batches out of the memory"
        )
    if errors:
        raise ValueError(". And ".join(errors))


def largest_storable(queue: Queue) -> float:
    """Returns the largest magnitude of a number that can be stored.

    Moments are computed from sums of squares, so a number has to have a square. Room for 2¹⁶ is left, as a
    single row among n may be n times as far from the mean as the standard deviation by which it is divided.
    """
    largest_read = torch.finfo(read_dtype(queue.dtype)).max
    return float(min(largest_read, torch.finfo(queue.map.dtype).max ** 0.5) * 2.0**-16)


def _make_batch_of_ranks(
    memory: Memory, call: str, make_own: Callable[[], Batch], *, is_training: bool
) -> tuple[Batch, list[ranks.Report]]:
    """Returns the batch of a call that ranks make together. All of them raise if one does."""
    queue, group = memory.queue, memory._group
    is_alike = queue.is_alike or queue.num_rows == 0
    batch, reports = ranks.gather_reports(
        group,
        f"{type(memory).__name__}.{call}",
        make_own,
        # Whoever watches is to see all anchors. It may raise, so it is asked where all ranks then raise.
        can_share=lambda: can_share(memory.loss, memory.miner) and not memory._watchers,
        is_alike=is_alike,
        memory_size=queue.memory_size,
        num_rows=queue.num_rows,
        queue_idx=queue.position,
        num_calls=queue.num_calls,
        training=is_training,
        is_grad_enabled=torch.is_grad_enabled(),
    )
    if not all(report.is_alike for report in reports):
        check_alike = ranks.check_maps_alike if memory._is_sharded else ranks.check_alike
        check_alike(group, queue.contents)
        ranks.check_adapters_alike(group, memory._hooks.adapters)
        queue.is_alike = True
    batch = batch._replace(
        is_stored=all(report.is_stored for report in reports),
        is_finite=all(report.is_finite for report in reports),
    )
    if not (batch.is_stored or memory._is_sharded):
        return batch, []  # every rank reads its own copy of the rows
    batch = ranks.with_all_refs(group, batch, reports)
    check_size(len(batch.refs), queue.memory_size)
    return batch, reports


def _check_shards(memory: Memory, user_pairs: IndicesTuple | None) -> None:
    check_sharded(memory)  # again, as the loss or the miner may have got hooks since the memory was built
    if user_pairs is not None:
        remedy = "pass a miner, or use gather_distributed"
        raise ValueError(f"indices_tuple with shard_distributed=True: {remedy}")


def check_sharded(memory: Memory) -> None:
    """Refuses settings, losses and miners that need all rows in one place."""
    if memory.gather_distributed or memory.normalize_memory or memory.update != "queue":
        raise ValueError(
            f"shard_distributed=True with gather_distributed={memory.gather_distributed}, normalize_memory="
            f"{memory.normalize_memory} and update={memory.update!r}, which need all rows in one place: pass "
            "False, False and 'queue', or gather_distributed=True instead"
        )
    if not can_be_sharded(memory.loss, memory.miner):
        parts = [part for part in (memory.loss, memory.miner) if part is not None]
        names = " and a ".join(type(part).__name__ for part in parts)
        raise ValueError(
            f"shard_distributed=True with a {names}: pass a loss and a miner of docs/distributed.md, without "
            "a hook, a regularizer or statistics, or gather_distributed=True instead"
        )


def check_caller(memory: object, *, stores: bool) -> None:
    """Refuses calls whose batch would be stored where nobody finds it, or more than once.

    Raises:
        RuntimeError: the memory is a replica that ``torch.nn.DataParallel`` has made, or the call is to store
            a batch within a backward pass.
    """
    name = type(memory).__name__
    if vars(memory).get("_is_replica"):
        raise RuntimeError(
            f"this {name} is a replica that torch.nn.DataParallel made for one call, and what one stores "
            "is lost: wrap the model alone in DataParallel and compute the loss outside, or train with "
            "torch.nn.parallel.DistributedDataParallel and gather_distributed=True"
        )
    # As in torch.utils.checkpoint, -1 stands for none.
    if stores and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            f"{name} is called within a backward pass, as torch.utils.checkpoint calls a function for the "
            "second time: it would find other rows in memory than the first time, so that value and gradient "
            "do not belong together. Checkpoint the model alone, and compute the loss of what it returns"
        )


class OneThread:
    """Lets one thread at a time into a block, which may enter it again; other threads get a RuntimeError."""

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, threading.RLock()
        self._name = ""

    def __enter__(self) -> None:
        name = threading.current_thread().name
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"thread {name!r} calls a {self._what} while thread {self._name!r} does: call it in one "
                "thread at a time, or build one for each thread"
            )
        self._name = name

    def __exit__(self, *_: Any) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[OneThread], tuple[str]]:
        return OneThread, (self._what,)  # a copy is in no thread
