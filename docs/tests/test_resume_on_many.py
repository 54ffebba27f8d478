"""The script on the page *Distributed training* does what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from forked import run_ranks

SCRIPT = Path(__file__).parents[1] / "scripts" / "resume_on_many.py"


def checkpoint_after(folder: Path, *steps: int) -> dict[str, Any]:
    """Runs the script on two ranks, to each number of steps in turn."""
    path = folder / "checkpoint.pt"
    for number in steps:
        ended = run_ranks(SCRIPT, "--steps", str(number), "--checkpoint", str(path))
        assert ended.returncode == 0, ended.stderr
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
