"""Runs that do not need each other, several at a time."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from types import TracebackType
from typing import Any

import torch
from tqdm import tqdm


class Processes:
    """Worker processes that share the cores.

    Args:
        jobs: how many.
    """

    def __init__(self, jobs: int) -> None:
        threads = max(1, (os.cpu_count() or 1) // jobs)
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(jobs, spawn, torch.set_num_threads, (threads,))

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def run(
        self, function: Callable[..., Any], work: Iterable[tuple[Any, ...]], title: str
    ) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Calls a function with each of the arguments; yields these and its outcome, the first done first."""
        futures = {self._pool.submit(function, *arguments): arguments for arguments in work}
        finished = tqdm(as_completed(futures), title, len(futures), unit="run", disable=not futures)
        for future in finished:
            yield futures[future], future.result()
