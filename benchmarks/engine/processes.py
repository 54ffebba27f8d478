"""Runs that do not need each other, several at a time."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import torch
from tqdm import tqdm


def in_processes(
    jobs: int, function: Callable[..., Any], work: Iterable[tuple[Any, ...]], title: str
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Calls a function with each of the arguments, in ``jobs`` processes that share the cores.

    Yields the arguments and what came of them, the first done first.
    """
    threads = max(1, (os.cpu_count() or 1) // jobs)
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, spawn, torch.set_num_threads, (threads,))
    try:
        futures = {pool.submit(function, *arguments): arguments for arguments in work}
        for future in tqdm(as_completed(futures), title, len(futures), unit="run", disable=not futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
