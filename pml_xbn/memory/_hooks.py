"""The hooks of a memory, run in order, and taken back to where they were when a step fails."""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..adapters.base_adapter import BaseAdapter, Refusal
from ._queue import Queue
from ._rows import Rows
from ._samples import Placement

_PREFIX = "memory_hook_"

MemoryHook = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor | None]

# An adapter follows the moments of one memory.
_HOOKS_OF: weakref.WeakKeyDictionary[BaseAdapter, weakref.ref[MemoryHooks]] = weakref.WeakKeyDictionary()


class MemoryHooks:
    """Hooks in order of registration.

    Attributes:
        are_running: a hook is adapting the rows at the moment; a transaction makes it False at its end.
        placement: where the batch goes that the hooks see, if it has samples.
    """

    placement: Placement | None = None

    def __init__(self) -> None:
        self._hooks: OrderedDict[int, MemoryHook] = OrderedDict()
        self.are_running = False

    def __contains__(self, hook: object) -> bool:
        return any(hook is own for own in self._hooks.values())

    def register(self, hook: MemoryHook, memory: nn.Module, embedding_size: int) -> RemovableHandle:
        """Adds a hook of a memory of rows of this size. A module becomes the memory's, if it is not yet.

        Raises:
            TypeError: it cannot be called.
            ValueError: it is an adapter of another memory, whose moments it follows.
        """
        name = type(hook).__name__
        if not callable(hook):
            raise TypeError(
                f"hook is a {name}: pass a function or module that takes "
                "(memory, memory_labels, batch, batch_labels)"
            )
        if isinstance(hook, BaseAdapter):
            if type(hook).forward is not BaseAdapter.forward:
                raise TypeError(
                    f"{name} overrides forward, which a memory never calls: override map, or derive it from "
                    "torch.nn.Module"
                )
            others = _HOOKS_OF[hook]() if hook in _HOOKS_OF else None
            if others is not None and others is not self and hook in others:
                raise ValueError(f"{name} is registered on another memory: build one for each memory")
            _HOOKS_OF[hook] = weakref.ref(self)
            hook.set_embedding_size(embedding_size)
        handle = RemovableHandle(self._hooks)
        while handle.id in self._hooks:  # of a process that has been unpickled from
            handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        if isinstance(hook, nn.Module) and all(hook is not module for module in memory.modules()):
            numbers = [int(name.removeprefix(_PREFIX)) for name in self.drop_removed(memory)]
            memory.add_module(f"{_PREFIX}{max(numbers, default=-1) + 1}", hook)
        return handle

    def drop_removed(self, memory: nn.Module) -> list[str]:
        """Drops the memory's modules that are hooks no more; returns the names of those that are."""
        names = []
        for name, module in list(memory.named_children()):
            if name.startswith(_PREFIX) and module in self:
                names.append(name)
            elif name.startswith(_PREFIX):
                delattr(memory, name)
        return names

    def refusals(self, labels: Tensor) -> list[Refusal]:
        """What the hooks that check labels have against these."""
        refusals = []
        for hook in self._hooks.values():
            refusal = hook.refusal(labels) if isinstance(hook, BaseAdapter) else None
            if refusal is not None:
                refusals.append(refusal)
        return refusals

    def adapted(
        self, rows: Rows, labels: Tensor, batch: Tensor, batch_labels: Tensor, *, allow_nonfinite: bool
    ) -> Rows:
        """The rows after all hooks, each of which gets those that the one before it left.

        Hooks that are no adapters get copies, so that one that writes to its input and then fails cannot
        harm the memory.
        """
        self.are_running = True
        for hook in tuple(self._hooks.values()):  # one may remove itself
            if isinstance(hook, BaseAdapter):
                if len(rows) == 0:
                    rows = rows.beginning_with(batch)
                before = rows.measured() if len(rows) > 1 else rows
                rows = hook.adapt(before, labels, batch, batch_labels)
                if allow_nonfinite and rows is not before:
                    rows = rows.where_finite(before)
                continue
            values = rows.read(batch.dtype)
            new_values = hook(values, labels.clone(), batch.clone(), batch_labels.clone())
            if new_values is not None:
                rows = rows.replaced_by(_checked(new_values, values, hook, allow_nonfinite))
        self.are_running = False
        return rows

    def returning_samples(self) -> tuple[Tensor, Tensor]:
        """Returns where samples that the batch holds again are in memory, and in the batch, ``(r,)`` each.

        Raises:
            RuntimeError: no hook is running.
        """
        if not self.are_running:
            raise RuntimeError(
                "returning_samples is of the batch that hooks see: ask for it in a memory hook"
            )
        if self.placement is None:
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
        return self.placement.stored_at, self.placement.returning

    def state(self) -> Callable[[], None]:
        """What the hooks that are modules hold now, as a function that gives it back to them."""
        parts, states = [], []
        for hook in self._hooks.values():
            if not isinstance(hook, nn.Module):
                continue
            for part in hook.modules():
                parts.append((part, vars(part).copy(), part._buffers.copy()))
            if not isinstance(hook, BaseAdapter):  # which assigns what it keeps and writes to nothing
                states.append((hook, copy.deepcopy(hook.state_dict())))

        def give_back() -> None:
            for part, attributes, buffers in parts:
                part.__dict__.update(attributes)
                part._buffers.update(buffers)  # one that was None is no part of the state
            for module, state in states:
                module.load_state_dict(state)

        return give_back


@contextmanager
def transaction(queue: Queue, hooks: MemoryHooks) -> Iterator[None]:
    """Finishes a step at the end of a block, or undoes it if the block raises. The outermost block counts."""
    if queue.is_in_transaction:
        yield
        return
    before, restore_hooks = queue.settled(), hooks.state()
    queue.is_in_transaction = True
    try:
        yield
        queue.settle()
    except BaseException:
        queue.undo(before)
        restore_hooks()
        raise
    finally:
        queue.is_in_transaction = hooks.are_running = False


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
