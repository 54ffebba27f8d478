"""Runs in several processes that are told to stop.

python test_processes.py FOLDER makes three calls in two processes, of which one ends at once and two do not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.engine.processes import in_processes

ROOT = Path(__file__).parents[2]


def wait_until(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_sigterm_ends_the_workers_and_keeps_what_they_finished(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen(
        [sys.executable, __file__, str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: (tmp_path / "kept-0").exists() and len(list(tmp_path.glob("pid-*"))) == 2)
        parent.send_signal(signal.SIGTERM)
        _, told = parent.communicate(timeout=60)
    finally:
        parent.kill()
    assert parent.returncode == 1
    assert "stopped with 2 calls to go; the same command goes on" in told
    pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    wait_until(lambda: not any(map(is_alive, pids)), 10)
    assert [path.name for path in tmp_path.glob("kept-*")] == ["kept-0"]


def call(folder: Path, seconds: float) -> float:
    (folder / f"pid-{os.getpid()}").touch()
    time.sleep(seconds)
    return seconds


if __name__ == "__main__":
    to = Path(sys.argv[1])
    for (_, seconds), _ in in_processes(2, call, [(to, 0.0), (to, 300.0), (to, 301.0)], "calls"):
        (to / f"kept-{seconds:g}").touch()
