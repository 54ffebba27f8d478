"""A memory with hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from ..adapters.base_adapter import BaseAdapter
from ._memory_hooks import MemoryHook, MemoryHooks, made_buffers
from ._queue_memory import QueueMemory


class HookedMemory(QueueMemory):
    """Registers hooks, and keeps those that are modules among its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._hooks = MemoryHooks()
        self._names_of_hooks: list[str] = []  # those of modules
        super().__init__(*args, **kwargs)

    def register_memory_hook(self, hook: MemoryHook) -> RemovableHandle:
        """Registers a hook that adapts the stored rows.

        It is called as ``hook(memory, memory_labels, batch, batch_labels)`` with the occupied rows
        ``(n, d)``, their labels ``(n,)``, and the detached rows about to be enqueued, ``(b, d)`` and
        ``(b,)``, of which an ``enqueue_mask`` may leave none. It returns the new rows, in the same number
        and order, or None to leave them; it does not write to what it is given. Hooks run in order of
        registration. A hook that is a module becomes a submodule, so its state is part of the checkpoint,
        and is restored when a step fails.

        Returns:
            A handle whose ``remove()`` takes the hook out again.

        Raises:
            TypeError: the hook cannot be called.
        """
        self._drop_removed_hooks()
        handle = self._hooks.register(hook, self.embedding_size)
        if isinstance(hook, BaseAdapter) and hook.needs_covariance:
            self.queue.has_matrices = True
        if isinstance(hook, nn.Module) and all(hook is not module for module in self.modules()):
            numbers = [int(name.removeprefix("memory_hook_")) for name in self._names_of_hooks]
            name = f"memory_hook_{max(numbers, default=-1) + 1}"
            self._names_of_hooks.append(name)
            self.add_module(name, hook)
        return handle

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        """A block that leaves nothing behind unless it has replaced the queue's rows."""
        before, give_back = self.queue.contents, self._hooks.state()
        try:
            yield
        except BaseException:
            self._hooks.are_running = False
            if self.queue.contents.rows is before.rows:  # whoever has assigned labels meanwhile
                before.rows.take_back()
                self.queue.contents = before
                give_back()
            raise

    def _drop_removed_hooks(self) -> None:
        """A module that was registered for a hook goes with it."""
        for name in self._names_of_hooks.copy():
            if getattr(self, name) not in self._hooks:
                delattr(self, name)
                self._names_of_hooks.remove(name)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._drop_removed_hooks()
        super()._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self._drop_removed_hooks()
        hooks = [(prefix + name, getattr(self, name)) for name in self._names_of_hooks]
        with made_buffers(hooks, state_dict):
            super()._load_from_state_dict(state_dict, prefix, *args)
