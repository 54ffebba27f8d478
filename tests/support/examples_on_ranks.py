"""One rank of the examples on ranks: distributed.py, sharded.py, train_sop.py whole, stopped and resumed.

python examples_on_ranks.py EXAMPLES OUTPUT
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
from pathlib import Path

import torch
from at_step import at_step
from script_on_few_glyphs import FewGlyphs
from torch import distributed

import pml_xbn.datasets

EXAMPLES = OUTPUT = Path()
BATCH_SIZE = 32


def run(name: str, *arguments: str) -> None:
    sys.argv = [name, *arguments]
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def train_sop(output: str) -> None:
    arguments = ["--dataset", "glyphs", "--epochs", "2", "--batch-size", str(BATCH_SIZE), "--workers", "1"]
    run("train_sop.py", *arguments, "--resume", "--output", str(OUTPUT / output))


def keep(source: str, destination: str) -> None:
    if distributed.get_rank() == 0:
        shutil.copytree(OUTPUT / source, OUTPUT / destination)


def end_second_rank() -> None:
    if distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    EXAMPLES, OUTPUT = map(Path, sys.argv[1:])
    torch.set_num_threads(1)
    pml_xbn.datasets.Glyphs = FewGlyphs  # type: ignore[misc]
    distributed.init_process_group("gloo")
    # The ranks stay together from one script to the next.
    distributed.init_process_group = distributed.destroy_process_group = lambda *_: None
    run("distributed.py", "--epochs", "2", "--steps", "5")
    run("sharded.py", "--steps", "4", "--memory-size", "100", "--folder", str(OUTPUT / "sharded"))
    # What a kill in the second epoch leaves; from there one rank is told to end, and all go on to the end.
    with at_step(len(FewGlyphs("train")) // BATCH_SIZE + 2, keep, "whole", "stopped"):
        train_sop("whole")
    with at_step(2, end_second_rank):
        train_sop("stopped")
    keep("stopped", "terminated")
    train_sop("stopped")
