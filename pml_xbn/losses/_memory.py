"""What the acts of a step need to know of the memory that they work for."""

from __future__ import annotations

from typing import Any, Protocol

from ..distributed._group import Group
from ..memory._hooks import MemoryHooks
from ..memory._queue import Queue
from ..pairwise._miners import Miner


class Memory(Protocol):
    """The settings and parts of an ``AdaptiveCrossBatchMemory`` that the acts of its step use.

    ``AdaptiveCrossBatchMemory`` says what each setting means.
    """

    loss: Any
    miner: Miner | None
    delay: int
    warmup: int
    batch_loss_weight: float
    normalize_memory: bool
    gather_distributed: bool
    shard_distributed: bool
    nonfinite: str
    collect_stats: bool
    update: str
    update_momentum: float

    queue: Queue
    _hooks: MemoryHooks
    _group: Group
    _is_sharded: bool  # rows are spread over the ranks of the group
    _has_warned_of_empty: bool
