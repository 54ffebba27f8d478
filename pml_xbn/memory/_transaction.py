"""Steps that are finished, or undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ._hooks import MemoryHooks
from ._queue import Queue


@contextmanager
def transaction(queue: Queue, hooks: MemoryHooks) -> Iterator[None]:
    """Finishes a step at the end of a block, or undoes it if the block raises. The outermost block counts."""
    if queue.is_in_transaction:
        yield
        return
    before, restore_hooks = queue.contents, hooks.state()
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
