"""Checks of a memory's settings, as it is built and where one is set afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from pytorch_metric_learning.reducers import DoNothingReducer
from torch import Tensor, nn

from .._checks import check_integer, check_non_negative, check_one_of
from ..memory._placement import check_update
from ..pairwise._supported import check_supported

_CHOICES: dict[str, tuple[object, ...]] = {
    "memory_dtype": (torch.float16, torch.bfloat16, torch.float32, torch.float64),
    "nonfinite": ("raise", "raise_at_once", "skip", "ignore"),
}
_LEAST = {"embedding_size": 1, "memory_size": 1, "warmup": 0, "delay": 0}
_FIXED = ("embedding_size", "shard_distributed")


def check_setting(memory: nn.Module, name: str, value: Any) -> None:
    """Raises a ValueError for a value that a setting cannot have. Other attributes may have any value."""
    if name in _LEAST:
        check_integer(name, value, _LEAST[name])
    elif name in _CHOICES:
        check_one_of(name, value, _CHOICES[name])
    elif name in _DEPENDENT_CHECKS:
        _DEPENDENT_CHECKS[name](memory, value)
    if name in _FIXED and value != vars(memory).get(name, value):
        raise ValueError(
            f"{name}={value!r} for a {type(memory).__name__} that was built with {getattr(memory, name)!r}: "
            "build another one"
        )


def _check_loss(memory: Any, loss: nn.Module) -> None:
    _check_is_object("loss", loss)
    names_of_pml = CrossBatchMemory.supported_losses()
    check_supported(loss, [x for x in type(memory).supported_losses() if x not in names_of_pml])
    _check_sum(loss, getattr(memory, "batch_loss_weight", 0.0))


def _check_miner(memory: Any, miner: Any) -> None:
    _check_is_object("miner", miner)
    if not (miner is None or callable(miner)):
        raise TypeError(f"miner={miner!r}: pass one of PML's miners, or None")


def _check_is_object(name: str, value: object) -> None:
    if isinstance(value, type):
        raise TypeError(f"{name} is the class {value.__name__}: pass an object of it, {value.__name__}()")


def _check_adapter(memory: Any, adapter: Any) -> None:
    """Refuses another one than a wrapper was built with, which no step would call."""
    if memory._modules.get("adapter", adapter) is not adapter:
        raise ValueError(
            f"the adapter of a {type(memory).__name__} is one of its hooks, and another would not be called: "
            "register it on an AdaptiveCrossBatchMemory, with register_memory_hook"
        )


def _check_batch_loss_weight(memory: nn.Module, weight: float) -> None:
    check_non_negative("batch_loss_weight", weight)
    _check_sum(memory.loss, weight)


def _check_sum(loss: Any, weight: float) -> None:
    if weight and isinstance(getattr(loss, "reducer", None), DoNothingReducer):
        raise cannot_add(loss, weight)


# Checks of settings that depend on other settings.
_DEPENDENT_CHECKS: dict[str, Callable[[Any, Any], None]] = {
    "loss": _check_loss,
    "miner": _check_miner,
    "adapter": _check_adapter,
    "batch_loss_weight": _check_batch_loss_weight,
    "update": lambda memory, value: check_update(value, getattr(memory, "update_momentum", 0.0)),
    "update_momentum": lambda memory, value: check_update(memory.update, value),
}


def cannot_add(loss: Any, weight: float) -> ValueError:
    """The error of adding losses that are no tensors."""
    return ValueError(
        f"batch_loss_weight={weight!r} with a {type(loss.reducer).__name__}, which returns no number to add "
        "to: pass batch_loss_weight=0.0 and compute the batch's own loss with BatchLoss, or pass a reducer "
        "that returns a number, such as MeanReducer"
    )


def weighted_sum(memory: Any, of_memory: Tensor, of_batch: Tensor) -> Tensor:
    """Returns the loss against the memory plus ``batch_loss_weight`` times that of the batch."""
    if not (isinstance(of_memory, Tensor) and isinstance(of_batch, Tensor)):
        raise cannot_add(memory.loss, memory.batch_loss_weight)
    value: Tensor = of_memory + memory.batch_loss_weight * of_batch
    return value
