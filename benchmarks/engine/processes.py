"""Runs that do not need each other, several at a time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.engine.interruption import Interruption

_LOOK_EVERY = 0.5  # seconds; a signal does not end a wait


def in_processes(
    jobs: int, function: Callable[..., Any], work: Iterable[tuple[Any, ...]], title: str
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Calls a function with each of the arguments, in ``jobs`` processes that share the threads of this one.

    Yields the arguments and what came of them, the first done first. SIGTERM or Ctrl-C ends the processes
    and the program, once what was done has been yielded.
    """
    threads = max(1, torch.get_num_threads() // jobs)
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, spawn, torch.set_num_threads, (threads,))
    others = set(multiprocessing.active_children())
    pending = {pool.submit(function, *arguments): arguments for arguments in work}
    try:
        with Interruption(second_stops=True) as interruption:
            with tqdm(desc=title, total=len(pending), unit="run", disable=not pending) as bar:
                while pending and not interruption.wanted:
                    done = wait(pending, _LOOK_EVERY, FIRST_COMPLETED).done
                    for future in done:
                        # A Ctrl-C in a terminal has ended the processes, too.
                        if not (interruption.wanted and future.exception()):
                            yield pending.pop(future), future.result()
                            bar.update()
            if interruption.wanted and pending:
                raise SystemExit(f"stopped with {len(pending)} {title} to go; the same command goes on")
    finally:
        if pending:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
