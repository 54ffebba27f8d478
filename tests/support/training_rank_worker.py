"""One rank of benchmarks.papers: a whole run, one that Ctrl-C on a single rank ends, its resumption, and
one without diagnostics.

python training_rank_worker.py FOLDER FLAGS...
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import benchmarks.papers.__main__ as train
from benchmarks.engine.ranks import Ranks
from benchmarks.engine.run import Run

_ARGV = list(sys.argv)


def run(output: str, *flags: str) -> None:
    script, folder, *given = _ARGV
    sys.argv = [script, *given, "--output", str(Path(folder, output)), *flags]
    train.main()


def interrupted_run(output: str) -> None:
    """Sends Ctrl-C to the second rank alone, in the first step of the second epoch."""
    train_step = Run._train_step

    def train_step_and_interrupt(run: Run, *batch: Any) -> None:
        train_step(run, *batch)
        if (run.epoch, run.step, run.task.ranks.rank) == (1, 0, 1):
            for _ in range(2):  # from the terminal, and from torchrun
                os.kill(os.getpid(), signal.SIGINT)

    Run._train_step = train_step_and_interrupt  # type: ignore[method-assign]
    with pytest.raises(SystemExit, match="130"):
        run(output)
    Run._train_step = train_step  # type: ignore[method-assign]


if __name__ == "__main__":
    leave = Ranks.leave
    Ranks.leave = lambda ranks: None  # type: ignore[method-assign]  # stay together for the next run
    run("whole")
    interrupted_run("stopped")
    run("stopped", "--resume")
    run("unwatched", "--diagnostics-every", "0")
    run("in-parts", "--freeze-bn", "--accumulate", "2")
    leave(Ranks(cpu=True))
