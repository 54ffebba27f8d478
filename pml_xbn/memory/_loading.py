"""A state is loaded whole, or not at all."""

from __future__ import annotations

import copy
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..adapters.base_adapter import BaseAdapter
from ._hooks import MemoryHooks
from ._queue import Queue


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
