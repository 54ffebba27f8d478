"""The script on the page *Distributed training* does what the page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

SCRIPT = Path(__file__).parents[1] / "scripts" / "resume_on_many.py"


def checkpoint_after(folder: Path, *steps: int) -> dict[str, Any]:
    """Runs the script on two ranks, to each number of steps in turn."""
    path = folder / "checkpoint.pt"
    for number in steps:
        ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        subprocess.run(
            [*ranks, str(SCRIPT), "--steps", str(number), "--checkpoint", str(path)],
            check=True,
            timeout=240,
            capture_output=True,
        )
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def test_resume_on_two_ranks_continues_bit_for_bit(tmp_path: Path) -> None:
    for name in ("whole", "resumed"):
        (tmp_path / name).mkdir()
    whole = checkpoint_after(tmp_path / "whole", 24)
    resumed = checkpoint_after(tmp_path / "resumed", 10, 24, 10)  # the last of which has nothing to do
    assert whole["step"] == resumed["step"] == 24
    assert all(torch.equal(resumed["model"][name], value) for name, value in whole["model"].items())
    assert whole["loss_fn"].keys() == resumed["loss_fn"].keys()
    assert all(torch.equal(resumed["loss_fn"][name], value) for name, value in whole["loss_fn"].items())
    # 24 steps of 32 rows: the memory of 512 has wrapped around.
    assert whole["loss_fn"]["queue.rows"].any(dim=1).all()
