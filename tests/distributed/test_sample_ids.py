"""Two ranks hold the samples of one process."""

from __future__ import annotations

from pathlib import Path

from torchrun import torchrun

WORKER = Path(__file__).parents[1] / "sample_worker.py"


def test_two_ranks_store_average_and_move_the_rows_of_one_process() -> None:
    finished = torchrun(WORKER)
    assert finished.returncode == 0, finished.stderr
    assert "rows, losses and gradients agree" in finished.stdout
