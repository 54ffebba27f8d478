"""A step is made as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .._tracing import can_read
from ._hooks import MemoryHooks
from ._module_state import settle_
from ._queue import Queue


@contextmanager
def transaction(queue: Queue, hooks: MemoryHooks) -> Iterator[None]:
    """Undoes a step if the block raises, and otherwise makes it the memory's state.

    A block within another does neither: the outer one does.
    """
    if queue.is_in_transaction:
        if hooks.are_running:
            raise RuntimeError("a memory hook changes its own memory: return other rows instead")
        yield
        return
    restore_hooks = hooks.snapshot()
    held = [] if can_read(queue.numbers) else hooks.held_tensors()
    queue.begin_step()
    if not hooks.has_only_adapters:
        queue.snapshot_labels()
    try:
        yield
        queue.check_writes()
        queue.standardize_if_due_()
    except BaseException:
        queue.undo_()
        restore_hooks()
        raise
    finally:
        queue.is_in_transaction = False
    queue.commit_()
    settle_(held)
