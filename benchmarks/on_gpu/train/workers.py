"""Processes that take one job after the other, and can be stopped at any moment."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch


class Failure(NamedTuple):
    """What a job that raised has raised."""

    message: str


class Workers:
    """So many processes, which are told what to do by number.

    Use it as a context manager: on leaving it the processes are ended, whatever they do.
    """

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there,), daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    def __len__(self) -> int:
        return len(self._connections)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.keep(0)

    def keep(self, count: int) -> None:
        """Ends all but the first ``count`` processes."""
        for process in self._processes[count:]:
            process.terminate()
        for process in self._processes[count:]:
            process.join(10)
        del self._processes[count:], self._connections[count:]

    def tell(self, worker: int, function: Callable[..., Any], *arguments: Any) -> None:
        """Gives a worker a job; a worker has one at a time."""
        self._connections[worker].send((function, arguments))

    def answers(self, workers: set[int], seconds: float) -> Iterator[tuple[int, Any]]:
        """Yields a worker's number and what its job returned, as they come; a `Failure` where it raised.

        It waits so long at most for the first answer, and for no second one.
        """
        asked = {self._connections[worker]: worker for worker in workers}
        for connection in wait(list(asked), max(0.0, seconds)):
            assert isinstance(connection, Connection)
            try:
                yield asked[connection], connection.recv()
            except EOFError:
                yield asked[connection], Failure("the process has ended")

    def all_answers(self, workers: set[int], seconds: float) -> dict[int, Any]:
        """Returns the answers that come within so long."""
        found: dict[int, Any] = {}
        ends = time.monotonic() + seconds
        while len(found) < len(workers) and time.monotonic() < ends:
            found.update(self.answers(workers - found.keys(), ends - time.monotonic()))
        return found


def _work(connection: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = function(*arguments)
        except Exception as error:  # of whatever kind: the others go on
            answer = Failure(f"{type(error).__name__}: {error}")
        connection.send(answer)
