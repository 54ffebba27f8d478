"""Who may call a memory: one thread at a time, no replica of it and no backward pass."""

from __future__ import annotations

import threading
from typing import Any

import torch


def check_caller(memory: object, *, is_stored: bool) -> None:
    """Refuses calls whose batch would be stored where nobody finds it, or more than once.

    Raises:
        RuntimeError: the memory is a replica that ``torch.nn.DataParallel`` has made, or the call is to store
            a batch within a backward pass.
    """
    name = type(memory).__name__
    if vars(memory).get("_is_replica"):
        raise RuntimeError(
            f"this {name} is a replica that torch.nn.DataParallel made for one call, and what one stores "
            "is lost: wrap the model alone in DataParallel and compute the loss outside, or train with "
            "torch.nn.parallel.DistributedDataParallel and gather_distributed=True"
        )
    # As in torch.utils.checkpoint, -1 stands for none.
    if is_stored and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            f"{name} is called within a backward pass, as torch.utils.checkpoint calls a function for the "
            "second time: it would find other rows in memory than the first time, so that value and gradient "
            "do not belong together. Checkpoint the model alone, and compute the loss of what it returns"
        )


class OneThread:
    """Lets one thread at a time into a block, which may enter it again; other threads get a RuntimeError."""

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, threading.RLock()
        self._name = ""

    def __enter__(self) -> None:
        name = threading.current_thread().name
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"thread {name!r} calls a {self._what} while thread {self._name!r} does: call it in one "
                "thread at a time, or build one for each thread"
            )
        self._name = name

    def __exit__(self, *_: Any) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[OneThread], tuple[str]]:
        return OneThread, (self._what,)  # a copy is in no thread
