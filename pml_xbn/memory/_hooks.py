"""The hooks of a memory, run in order, and taken back to where they were when a step fails."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from .._tracing import is_tracing
from ..adapters.base_adapter import BaseAdapter, Refusal
from ._adapt import adapt, take_part
from ._queue import Contents
from ._rows import Rows, Undo, rows_of

_PREFIX = "memory_hook_"

MemoryHook = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor | None]


class MemoryHooks:
    """Hooks in order of registration."""

    # While hooks run: where samples that the batch holds again are in memory, and in the batch, (r,) each.
    returning: tuple[Tensor, ...] | None = None

    def __init__(self) -> None:
        self._hooks: OrderedDict[int, MemoryHook] = OrderedDict()

    def register(self, hook: MemoryHook, memory: nn.Module, embedding_size: int) -> RemovableHandle:
        """Adds a hook of a memory of rows of this size; a module becomes the memory's, if it is not yet."""
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
            hook.set_embedding_size(embedding_size)
        handle = RemovableHandle(self._hooks)
        while handle.id in self._hooks:  # of a process that has been unpickled from
            handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        self.name_modules(memory)
        return handle

    def name_modules(self, memory: nn.Module) -> None:
        """Registers the modules among the hooks under numbers, except those already registered."""
        for name, _ in list(memory.named_children()):
            if name.startswith(_PREFIX):  # some may have been removed
                delattr(memory, name)
        for hook in self._hooks.values():
            if isinstance(hook, nn.Module) and all(hook is not module for module in memory.modules()):
                number = sum(name.startswith(_PREFIX) for name, _ in memory.named_children())
                memory.add_module(f"{_PREFIX}{number}", hook)

    def refusals(self, labels: Tensor) -> list[Refusal]:
        """What the hooks that check labels have against these."""
        refusals = []
        for hook in self._hooks.values():
            if isinstance(hook, BaseAdapter) and (refusal := hook.refusal(labels)) is not None:
                refusals.append(refusal)
        return refusals

    @property
    def adapters(self) -> list[BaseAdapter]:
        """The adapters among the hooks, in order."""
        return [hook for hook in self._hooks.values() if isinstance(hook, BaseAdapter)]

    @property
    def are_adapters(self) -> bool:
        """Whether no hook is a plain function or module, which gets rows and gives rows."""
        return len(self.adapters) == len(self._hooks)

    def adapt(
        self,
        contents: Contents,
        batch: Tensor,
        batch_labels: Tensor,
        undo: Undo,
        *,
        adapts: Tensor | None = None,
        allow_nonfinite: bool,
    ) -> Rows:
        """Returns the rows after all hooks, each of which gets those that the one before it left."""
        rows, labels = contents.rows, contents.row_labels
        for hook in tuple(self._hooks.values()):  # one may remove itself
            if isinstance(hook, BaseAdapter):
                before, is_checked = rows, not (allow_nonfinite or is_tracing() or _is_ours(hook))
                rows = adapt(
                    hook, rows, labels, batch, batch_labels, undo, adapts=adapts, is_checked=is_checked
                )
                if rows is not before and not (is_checked or contents.are_finite):
                    # A row of NaN leaves its dimensions as they are, and no other row is spoilt.
                    rows = rows.where_finite(before)
                continue
            values = rows.read(batch.dtype)
            num_writes = values._version
            # Copies, so that a hook that writes to its input and then fails cannot harm the memory.
            new_values = hook(values, labels.clone(), batch.clone(), batch_labels.clone())
            if new_values is None:
                _check_unwritten(values, num_writes, hook)
            else:
                new_values = _check_values(new_values, values, hook, allow_nonfinite)
                rows = rows_of(new_values, rows, len(rows.stored), rows.stored.dtype)
        return rows

    def take_part(self, contents: Contents, batch: Tensor, batch_labels: Tensor) -> Rows:
        """Takes part in the sums over ranks that adapters compute, and adapts nothing. Returns the rows."""
        rows, labels = contents.rows, contents.row_labels
        for adapter in self.adapters:
            rows = take_part(adapter, rows, labels, batch, batch_labels)
        return rows

    def state(self) -> Callable[[], None]:
        """What the hooks that are modules hold now, as a function that gives it back to them."""
        parts, states, others = [], [], []
        for hook in self._hooks.values():
            if isinstance(hook, nn.Module):
                for part in hook.modules():
                    parts.append((part, vars(part).copy(), part._buffers.copy()))
                if not isinstance(hook, BaseAdapter):  # which assigns what it keeps and writes to nothing
                    states.append((hook, copy.deepcopy(hook.state_dict())))
                    others += [(x, x.clone()) for x in _buffers_outside_the_state(hook)]

        def give_back() -> None:
            for part, attributes, buffers in parts:
                for made in (part._buffers.keys() - buffers.keys(), vars(part).keys() - attributes.keys()):
                    for name in made:
                        delattr(part, name)
                part.__dict__.update(attributes)
                part._buffers.update(buffers)  # one that was None is no part of the state
            for hook, state in states:
                hook.load_state_dict(state)
            with torch.no_grad():
                for values, old in others:
                    values.copy_(old)

        return give_back


def _is_ours(adapter: BaseAdapter) -> bool:
    """Returns whether an adapter is the package's: its maps are finite wherever rows and batch are.

    They are not looked at, as a GPU would have to wait for that.
    """
    return type(adapter).__module__.startswith("pml_xbn.adapters.")


def _buffers_outside_the_state(hook: nn.Module) -> Iterator[Tensor]:
    """Yields the buffers with ``persistent=False``, which a state does not hold."""
    for part in hook.modules():
        for name in part._non_persistent_buffers_set:
            values = part._buffers[name]
            if values is not None and not is_lazy(values):
                yield values


def _check_unwritten(rows: Tensor, num_writes: int, hook: MemoryHook) -> None:
    """Refuses what a hook has written to the rows that it was given, if it does not return them."""
    if rows._version != num_writes:
        raise RuntimeError(
            f"memory hook {_name(hook)} wrote to the rows that it was given, which are a copy, and returned "
            "None, which leaves the rows of the memory as they are: return the rows that it has made"
        )


def _name(hook: MemoryHook) -> str:
    return getattr(hook, "__name__", type(hook).__name__)


def _check_values(new_rows: Tensor, rows: Tensor, hook: MemoryHook, allow_nonfinite: bool) -> Tensor:
    """Returns the rows that a hook has made of others, in their dtype."""
    name = _name(hook)
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
