"""The memories that are compared, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import Tensor, nn

from benchmarks.hooks.cluster_moments import ClusterMatching
from benchmarks.hooks.recency_moments import RecencyMatching
from benchmarks.hooks.spherical_moments import match_on_sphere
from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory, BatchLoss


@dataclass(frozen=True)
class MemorySetup:
    """What memories need to know of the task: sizes, forward calls per epoch, label -> superclass or None."""

    embedding_size: int
    memory_size: int
    steps_per_epoch: int = 1
    superclasses: Tensor | None = None


class Method(NamedTuple):
    """A class of memories, what it is made with where nothing else is said, and a hook for those made."""

    memory: type[CrossBatchMemory]
    options: Callable[[MemorySetup], dict[str, Any]] = lambda setup: {}
    hook: Callable[[nn.Module, MemorySetup], Callable[..., Tensor | None]] | None = None


METHODS: dict[str, Method | None] = {
    "no-xbm": None,
    "xbm": Method(CrossBatchMemory),
    "xbm-star": Method(AdaptiveCrossBatchMemory, lambda setup: {"batch_loss_weight": 1.0}),
    "xbn": Method(XBNWrapper),
    "axbn": Method(AXBNWrapper),
    "ema": Method(XBNWrapper, lambda setup: {"momentum": 0.5}),
    "centre": Method(XBNWrapper, lambda setup: {"match_std": False}),
    "unit-norm": Method(XBNWrapper, lambda setup: {"normalize_memory": True}),
    "xbn-bfloat16": Method(XBNWrapper, lambda setup: {"memory_dtype": torch.bfloat16}),
    "xbn-float16": Method(XBNWrapper, lambda setup: {"memory_dtype": torch.float16}),
    "delayed": Method(XBNWrapper, lambda setup: {"delay": setup.steps_per_epoch}),
    "per-class": Method(PerClassXBN),
    "super-class": Method(SuperClassXBN, lambda setup: {"superclasses": setup.superclasses}),
    "clusters": Method(
        AdaptiveCrossBatchMemory, hook=lambda memory, setup: ClusterMatching(setup.embedding_size)
    ),
    "spherical": Method(AdaptiveCrossBatchMemory, hook=lambda memory, setup: match_on_sphere),
    "recency": Method(
        AdaptiveCrossBatchMemory, hook=lambda memory, setup: RecencyMatching(setup.memory_size / 4, memory)
    ),
}
if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]  # the values of a flag


def build_loss(
    method: str,
    setup: MemorySetup,
    loss: nn.Module,
    miner: nn.Module | None = None,
    memory: Any = AdaptiveCrossBatchMemory,
    **options: Any,
) -> nn.Module:
    """Returns the loss of a method.

    Options go before those of the method. With any, even without effect, ``xbm`` is of the class ``memory``,
    which takes them, and else PML's own.
    """
    entry = METHODS[method]
    if entry is None:
        return BatchLoss(loss, miner, **options)
    if method != "xbm" or not options:
        memory = entry.memory
    all_options = {**entry.options(setup), **options}
    memory_loss = memory(loss, setup.embedding_size, setup.memory_size, miner, **all_options)
    if entry.hook is not None:
        memory_loss.register_memory_hook(entry.hook(memory_loss, setup))
    return memory_loss
