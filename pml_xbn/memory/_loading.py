"""A state is loaded whole, or not at all; also one of PML's ``CrossBatchMemory``."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..adapters.base_adapter import BaseAdapter
from ._hooks import MemoryHooks
from ._queue import Queue, state_of
from ._rows import rows_of


@contextmanager
def all_or_nothing(module: nn.Module, *parts: tuple[Queue, MemoryHooks]) -> Iterator[None]:
    """Gives a module what it held, and queues and hooks within it, if loading a state raises."""
    for queue, _ in parts:
        queue.take_edits()
    contents = [(queue, vars(queue).copy(), hooks.snapshot()) for queue, hooks in parts]
    # A state is copied into parameters and buffers, or with assign=True takes their place.
    named: list[tuple[MutableMapping[str, Any], dict[str, Any]]] = [
        (own, dict(own)) for part in module.modules() for own in (part._parameters, part._buffers)
    ]
    tensors = [x for x in (*module.parameters(), *module.buffers()) if not is_lazy(x)]
    before = [values.detach().clone() for values in tensors]
    try:
        yield
    except BaseException:
        for queue, held, restore_hooks in contents:
            # What is loaded takes the place of tensors, and is not written into them.
            vars(queue).update(held)
            restore_hooks()
        for own, old_names in named:
            own.update(old_names)
        with torch.no_grad():
            for values, old in zip(tensors, before, strict=True):
                values.copy_(old)
        raise


def check_states_of_adapters(memory: nn.Module, state: dict[str, Any], prefix: str) -> None:
    """Raises what an adapter has against its state, before the rows of the memory are loaded.

    Within a larger model, whose ``load_state_dict`` PyTorch calls, nothing else sees both.
    """
    for name, module in memory.named_children():
        key = f"{prefix}{name}._extra_state"
        has_state = type(module).set_extra_state is not nn.Module.set_extra_state
        if isinstance(module, BaseAdapter) and has_state and key in state:
            copy.deepcopy(module).set_extra_state(state[key])


def prepare_state(state: dict[str, Any], prefix: str, memory: nn.Module, queue: Queue) -> None:
    """Refuses a state of a memory of another size, and turns one of PML's ``CrossBatchMemory`` into ours."""
    rows, labels = (state.pop(prefix + name, None) for name in ("embedding_memory", "label_memory"))
    own_size = queue.memory_size, queue.rows.shape[1]
    saved_rows = state.get(prefix + "queue.rows") if rows is None else rows
    for axis, name in enumerate(("memory_size", "embedding_size")):
        if saved_rows is not None and saved_rows.shape[axis] != own_size[axis]:
            raise ValueError(
                f"the checkpoint's memory has shape {tuple(saved_rows.shape)}, this one {own_size}: "
                f"build it with {name}={saved_rows.shape[axis]}, not {own_size[axis]}"
            )
    if rows is None or labels is None:
        return
    occupied = (rows != 0).any(dim=1).nonzero()
    num_rows = int(occupied[-1]) + 1 if len(occupied) else 0
    position = num_rows % len(rows)
    warnings.warn(
        f"the checkpoint holds no queue position, as those of PML's CrossBatchMemory: took {num_rows} of "
        f"{len(rows)} rows to be filled and row {position} to be the next one written, and count calls from "
        "0, so warmup and delay start over",
        stacklevel=2,
    )
    stored = rows_of(rows[:num_rows], queue.contents.rows, len(rows), queue.dtype)
    found = {
        "labels": labels,
        "ids": torch.full_like(labels, -1, dtype=torch.int64),
        **state_of(stored, 0, position, 0),
    }
    state.update({f"{prefix}queue.{name}": values for name, values in found.items()})
    # What PML's class has no counterpart for stays as it is.
    for key, value in memory.state_dict(prefix=prefix).items():
        if not key.startswith((prefix + "loss.", prefix + "miner.")):
            state.setdefault(key, value)
