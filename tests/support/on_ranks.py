"""Runs a function on many ranks of a gloo group, on the CPU."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from forked import LIBRARIES
from torch import distributed, multiprocessing

get_context("forkserver").set_forkserver_preload(LIBRARIES)


def has_fully_shard() -> bool:
    """Whether this torch shows ``fully_shard`` in ``torch.distributed.fsdp``."""
    return find_spec("torch.distributed.fsdp._fully_shard") is not None


def on_ranks(function: Callable[..., None], *arguments: Any, ranks: int = 2, timeout: float = 120) -> None:
    """Calls ``function(*arguments)`` on every rank; its module is one that can be imported by name.

    Raises:
        Exception: that of the first rank that fails, with its traceback.
        TimeoutError: it took longer than so many seconds; the ranks are killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.start_processes(
            _on_rank, (ranks, folder, 60.0, function, arguments), ranks, join=False, start_method="forkserver"
        )
        deadline = time.monotonic() + timeout
        try:
            while not context.join(timeout=1):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{ranks} ranks took more than {timeout} s for {function.__name__}")
        finally:
            for process in context.processes:
                process.kill()


@contextmanager
def start_ranks(
    function: Callable[..., None], *arguments: Any, ranks: int, group_timeout: float
) -> Iterator[list[Any]]:
    """Gives a block the processes, one of which may be lost, and kills at its end those that still run."""
    with tempfile.TemporaryDirectory() as folder:
        shared = ranks, folder, group_timeout, function, arguments
        start = get_context("forkserver").Process
        processes = [start(target=_on_rank, args=(rank, *shared)) for rank in range(ranks)]
        try:
            for process in processes:
                process.start()
            yield processes
        finally:
            for process in processes:
                process.kill()


def _on_rank(
    rank: int,
    ranks: int,
    folder: str,
    group_timeout: float,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    warnings.simplefilter("error")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group(
        "gloo",
        init_method=(Path(folder) / "rendezvous").as_uri(),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=group_timeout),
    )
    function(*arguments)
    distributed.barrier()  # nobody leaves while another still listens
    # Threads of a gloo group can outlive it: the interpreter's end was seen to abort.
    os._exit(0)
