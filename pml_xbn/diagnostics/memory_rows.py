"""The rows that a cross-batch memory holds."""

from __future__ import annotations

from typing import NamedTuple

from pytorch_metric_learning.losses import CrossBatchMemory
from torch import Tensor

from ..memory._queue import Queue


class MemoryRows(NamedTuple):
    """The occupied rows ``(n, d)`` of a memory and their labels ``(n,)``."""

    embeddings: Tensor
    labels: Tensor


def memory_rows(memory: CrossBatchMemory) -> MemoryRows:
    """Returns a copy of the occupied rows of PML's ``CrossBatchMemory`` or one of its subclasses.

    Raises:
        TypeError: it is no ``CrossBatchMemory``.
        ValueError: its rows are spread over ranks.

    Example:
        >>> import torch
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> memory = CrossBatchMemory(ContrastiveLoss(), embedding_size=2, memory_size=8)
        >>> loss = memory(torch.ones(3, 2), torch.tensor([4, 5, 5]))
        >>> memory_rows(memory).labels
        tensor([4, 5, 5])
    """
    check_memory(memory)
    size = num_occupied(memory)
    return MemoryRows(memory.embedding_memory[:size].clone(), memory.label_memory[:size].clone())


def check_memory(memory: object) -> None:
    """Refuses what is no memory (TypeError), and one that holds a part of its rows here (ValueError)."""
    if not isinstance(memory, CrossBatchMemory):
        raise TypeError(f"memory is a {type(memory).__name__}: pass a CrossBatchMemory or a subclass")
    if getattr(memory, "_is_sharded", False):
        raise ValueError(
            f"the rows of this {type(memory).__name__} are spread over ranks (shard_distributed=True), and "
            "diagnostics need all of them: measure in a run with gather_distributed=True, or on one process"
        )


def num_occupied(memory: CrossBatchMemory) -> int:
    """Returns the number of occupied rows."""
    return int(memory.memory_size if memory.has_been_filled else memory.queue_idx)


class StoredSince:
    """Tells which rows a memory has stored since this object was made.

    Both classes set ``curr_batch_idx`` to a new tensor whenever they store. Calls that store nothing (a
    warm-up, ``eval()``) leave the tensor of an earlier call, but for a batch that is refused on a GPU.
    """

    def __init__(self, memory: CrossBatchMemory) -> None:
        self._memory = memory
        self._last = getattr(memory, "curr_batch_idx", None)

    def indices(self) -> Tensor | None:
        """Returns the indices of the rows that were stored last, ``(b,)``, or None if none were stored."""
        indices: Tensor | None = getattr(self._memory, "curr_batch_idx", None)
        if indices is self._last:
            return None
        queue = getattr(self._memory, "queue", None)
        return None if isinstance(queue, Queue) and queue.has_refused_newest() else indices
