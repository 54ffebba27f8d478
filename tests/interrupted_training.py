"""Runs examples/train.py, with Ctrl-C on one rank alone in the second epoch if the first argument says so.

python interrupted_training.py interrupt|whole FLAGS...
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import train
from training.run import Run

if __name__ == "__main__":
    interrupt = sys.argv.pop(1) == "interrupt"
    train_step = Run._train_step

    def train_step_and_interrupt(run: Run, *batch: Any) -> None:
        train_step(run, *batch)
        if interrupt and (run.epoch, run.step, run.ranks.rank) == (1, 0, 1):
            os.kill(os.getpid(), signal.SIGINT)

    Run._train_step = train_step_and_interrupt  # type: ignore[method-assign]
    train.main()
