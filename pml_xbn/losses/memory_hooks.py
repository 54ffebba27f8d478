"""The hooks of a memory, run in order, and taken back to where they were when a step fails."""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..adapters.base_adapter import BaseAdapter, Refusal

MemoryHook = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor | None]

_HOOKS_OF: weakref.WeakKeyDictionary[BaseAdapter, Callable[[], MemoryHooks | None]]
_HOOKS_OF = weakref.WeakKeyDictionary()


class MemoryHooks:
    """Hooks in order of registration.

    Attributes:
        are_running: a hook is adapting the rows at the moment.
    """

    def __init__(self) -> None:
        self._hooks: OrderedDict[int, MemoryHook] = OrderedDict()
        self.are_running = False

    def __len__(self) -> int:
        return len(self._hooks)

    def __contains__(self, number: int) -> bool:
        """Whether the hook with this handle's number is still there."""
        return number in self._hooks

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Keeps the handles of a process that unpickles hooks apart from those of the hooks."""
        self.__dict__.update(state)
        RemovableHandle.next_id = max(RemovableHandle.next_id, *self._hooks, -1) + 1

    def register(self, hook: MemoryHook) -> RemovableHandle:
        """Adds a hook.

        Raises:
            TypeError: it cannot be called.
            ValueError: it is an adapter of another memory, whose moments it follows.
        """
        if not callable(hook):
            raise TypeError(
                f"hook is a {type(hook).__name__}: pass a function or module that takes "
                "(memory, memory_labels, batch, batch_labels)"
            )
        if isinstance(hook, BaseAdapter):
            others = _HOOKS_OF.get(hook, lambda: None)()
            if others is not None and others is not self and hook in others._hooks.values():
                raise ValueError(
                    f"{type(hook).__name__} is registered on another memory: build one for each memory"
                )
            _HOOKS_OF[hook] = weakref.ref(self)
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def refusals(self, labels: Tensor) -> list[Refusal]:
        """What the hooks that check labels have against these."""
        checks = (getattr(hook, "refusal", None) for hook in self._hooks.values())
        refusals = (check(labels) for check in checks if check is not None)
        return [refusal for refusal in refusals if refusal is not None]

    def run(
        self, rows: Tensor, labels: Tensor, batch: Tensor, batch_labels: Tensor, *, allow_nonfinite: bool
    ) -> Tensor:
        """Hands every hook the rows that the one before it left, and returns the last ones.

        They are copies, so that a hook that writes to its input and then fails cannot harm the memory.
        """
        rows, labels, batch, batch_labels = (x.clone() for x in (rows, labels, batch, batch_labels))
        self.are_running = True
        try:
            for hook in self._hooks.values():
                new_rows = hook(rows, labels, batch, batch_labels)
                if new_rows is not None:
                    rows = _checked(new_rows, rows, hook, allow_nonfinite or isinstance(hook, BaseAdapter))
        finally:
            self.are_running = False
        return rows

    def sole_adapter(self) -> BaseAdapter | None:
        """The adapter, if it is the only hook: it may then write straight into the next memory."""
        hook = next(iter(self._hooks.values()), None)
        return hook if len(self._hooks) == 1 and isinstance(hook, BaseAdapter) else None

    def replaced(self, removed: Tensor, added: Tensor) -> None:
        """Tells the adapters which rows have gone and come."""
        for hook in self._hooks.values():
            if isinstance(hook, BaseAdapter):
                hook.replaced(removed, added)

    def forget(self) -> None:
        """Tells the adapters that the rows have changed otherwise."""
        for hook in self._hooks.values():
            if isinstance(hook, BaseAdapter):
                hook.forget()

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Gives the hooks that are modules their state back if the block raises."""
        modules = [hook for hook in self._hooks.values() if isinstance(hook, nn.Module)]
        states = [_state_of(module) for module in modules]
        buffers = [(part, dict(part._buffers)) for module in modules for part in module.modules()]
        try:
            yield
        except BaseException:
            for part, before in buffers:
                part._buffers.update(before)  # one that was None is no part of the state
            for module, state in zip(modules, states, strict=True):
                module.load_state_dict(state)
            raise


def make_buffers(module: nn.Module, state: dict[str, Any], prefix: str) -> None:
    """Makes the buffers that are None in a fresh module, and that the state of a used one holds."""
    for name, part in module.named_modules(prefix=prefix.rstrip(".")):
        for key, buffer in part._buffers.items():
            saved = state.get(f"{name}.{key}" if name else key)
            if buffer is None and saved is not None:
                part._buffers[key] = torch.empty_like(saved)


def _state_of(module: nn.Module) -> dict[str, Any]:
    """What a failed step may have changed, as it is now."""
    state = module.state_dict()
    if isinstance(module, BaseAdapter):
        # Its extra state is replaced and not written to, so there is no need of a copy.
        return {k: v if k == "_extra_state" else copy.deepcopy(v) for k, v in state.items()}
    return copy.deepcopy(state)


def _checked(new_rows: Tensor, rows: Tensor, hook: MemoryHook, allow_nonfinite: bool) -> Tensor:
    name = getattr(hook, "__name__", type(hook).__name__)
    if not isinstance(new_rows, torch.Tensor):
        raise TypeError(f"memory hook {name} returned a {type(new_rows).__name__}: return a tensor or None")
    if new_rows.shape != rows.shape:
        raise ValueError(
            f"memory hook {name} returned shape {tuple(new_rows.shape)}: return all "
            f"{len(rows)} rows in order, shape {tuple(rows.shape)}"
        )
    new_rows = new_rows.detach().to(rows)
    if not (allow_nonfinite or torch.isfinite(new_rows).all()):
        raise ValueError(
            f"memory hook {name} returned NaN or inf: return finite rows, or build the memory with "
            "nonfinite='ignore'"
        )
    return new_rows
