"""Tests that are called on every rank of a gloo group, each rank a process, on the CPU.

``@on_ranks(2)`` above a test runs it on two ranks, and ``@on_ranks(2, 3)`` once on two and once on three. Its
parameters and fixtures are those of any test, if they can be pickled; the ranks import the test's file.
"""

from __future__ import annotations

import ast
import faulthandler
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, signature
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from _pytest.assertion.rewrite import rewrite_asserts
from forked import LIBRARIES
from torch import distributed

get_context("forkserver").set_forkserver_preload(["pytest", *LIBRARIES])

Test = Callable[..., None]
START = 300.0  # seconds that ranks may take to start, on a busy machine
GRACE = 1.0  # seconds that the others have to end a test, too, once a rank has failed


def on_ranks(
    *sizes: int, timeout: float = 120, group_timeout: float | None = None, lost: int | None = None
) -> Callable[[Test], Test]:
    """Runs a test on every rank of a group of each of these sizes.

    Args:
        sizes: how many ranks.
        timeout: of the test, in seconds.
        group_timeout: of the process group, in seconds, for a test that loses ranks: it has ranks of its own,
            which do not wait for each other at its end.
        lost: a rank that such a test kills or keeps from the others.
    """

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run(pools: Pools, ranks: int, **arguments: Any) -> None:
            if group_timeout is None:
                pools.run(test, ranks, timeout, **arguments)
            else:
                with Pool(ranks, group_timeout) as pool:
                    pool.run(test, arguments, timeout, lost)

        own = [Parameter(name, Parameter.KEYWORD_ONLY) for name in ("pools", "ranks")]
        given = [x.replace(kind=Parameter.KEYWORD_ONLY) for x in signature(test).parameters.values()]
        run.__signature__ = signature(test).replace(parameters=[*own, *given])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("ranks", sizes, ids="{} ranks".format)(run)

    return decorate


class Pools:
    """The ranks of a file: a pool of each size, which is started by the first test that needs it."""

    def __init__(self) -> None:
        self._pools: dict[int, Pool] = {}

    def run(self, test: Test, ranks: int, timeout: float = 120, **arguments: Any) -> None:
        """Calls a function of a file on so many ranks, which are started anew after one that fails."""
        pool = self._pools.pop(ranks, None) or Pool(ranks)
        try:
            pool.run(test, arguments, timeout)
        except BaseException:
            pool.kill()
            raise
        self._pools[ranks] = pool

    def kill(self) -> None:
        for pool in self._pools.values():
            pool.kill()


class Pool:
    """Processes of one group, which wait for functions to call."""

    def __init__(self, ranks: int, group_timeout: float | None = None) -> None:
        self._stay_together = group_timeout is None
        context, self._folder = get_context("forkserver"), tempfile.TemporaryDirectory()
        ends = [context.Pipe() for _ in range(ranks)]
        self._connections = [own for own, _ in ends]
        self._processes = [
            context.Process(
                target=_serve, args=(theirs, rank, ranks, self._folder.name, group_timeout or 60.0)
            )
            for rank, (_, theirs) in enumerate(ends)
        ]
        for process, (_, theirs) in zip(self._processes, ends, strict=True):
            process.start()
            theirs.close()  # so that the other end reads of the process's death
        for rank, connection in enumerate(self._connections):
            if not connection.poll(START) or self._answer(rank):
                self.kill()
                raise RuntimeError(f"rank {rank} of {ranks} did not join its group")

    def run(self, test: Test, arguments: Mapping[str, Any], timeout: float, lost: int | None = None) -> None:
        """Calls a function on all ranks.

        Raises:
            pytest.fail.Exception: with the traceback of each rank that raised, and where the others were.
        """
        file = test.__module__, sys.modules[test.__module__].__file__
        for connection in self._connections:
            given = ForkingPickler.dumps(arguments).tobytes()
            connection.send((file, test.__name__, given, self._stay_together))
        pending = {own: rank for rank, own in enumerate(self._connections) if rank != lost}
        failures: dict[str, list[int]] = {}
        end = time.monotonic() + timeout
        while pending and (ready := wait(list(pending), max(end - time.monotonic(), 0))):
            for connection in ready:
                rank = pending.pop(connection)
                if answer := self._answer(rank):
                    failures.setdefault(answer, []).append(rank)
                    end = min(end, time.monotonic() + GRACE)
        for rank in pending.values():
            failures.setdefault(self._place(rank), []).append(rank)
        if lost is not None and self._connections[lost].poll():
            answer = self._answer(lost) or "ended, and was to be lost"
            if not answer.startswith("died"):
                failures.setdefault(answer, []).append(lost)
        if failures:
            told = [
                f"Rank {' and '.join(map(str, sorted(ranks)))} of {len(self._processes)} {failure}"
                for failure, ranks in failures.items()
            ]
            pytest.fail("\n".join(told), pytrace=False)

    def _answer(self, rank: int) -> str | None:
        """What went wrong on a rank."""
        try:
            answer: str | None = self._connections[rank].recv()
        except (EOFError, ConnectionError):
            self._processes[rank].join(5)
            return f"died, with exit code {self._processes[rank].exitcode}"
        return answer

    def _place(self, rank: int) -> str:
        """Where a rank is."""
        pid = self._processes[rank].pid
        assert pid is not None
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)  # at which it writes its stack
        time.sleep(0.1)
        return "had not ended, and was here:\n" + Path(self._folder.name, f"{rank}.stack").read_text()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._folder.cleanup()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _serve(calls: Connection, rank: int, ranks: int, folder: str, group_timeout: float) -> None:
    """Calls what comes, until there is nobody who would send it."""
    of_torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", **{name: str(number) for name, number in of_torchrun.items()}}
    torch.set_num_threads(1)
    with Path(folder, f"{rank}.stack").open("w") as stack:
        faulthandler.register(signal.SIGUSR1, stack)
        distributed.init_process_group(
            "gloo",
            init_method=Path(folder, "rendezvous").as_uri(),
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=group_timeout),
        )
        calls.send(None)
        while True:
            try:
                call = calls.recv()
            except EOFError:
                # Threads of a gloo group can outlive it: the interpreter's end was seen to abort.
                os._exit(0)
            calls.send(_call(*call))


def _call(file: tuple[str, str], name: str, arguments: bytes, stay_together: bool) -> str | None:
    try:
        function = getattr(_module(*file), name)
        function = getattr(function, "__wrapped__", function)
        given = ForkingPickler.loads(arguments)
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function(**given)
            if stay_together:
                distributed.barrier()  # the next test receives nothing that this one has sent
    except BaseException as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        return "raised:\n" + "".join(traceback.format_exception(type(error), error, frames))
    return None


def _module(name: str, path: str) -> ModuleType:
    """Imports a file as pytest does: by the name that it has there, with assertions that show values."""
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        assert spec is not None
        module = sys.modules[name] = module_from_spec(spec)
        source = Path(path).read_bytes()
        tree = ast.parse(source)
        rewrite_asserts(tree, source, path)
        exec(compile(tree, path, "exec", dont_inherit=True), module.__dict__)
    return sys.modules[name]
