from __future__ import annotations

from pathlib import Path

from torchrun import torchrun

WORKER = Path(__file__).with_name("batch_norm_worker.py")


def test_two_ranks_normalize_by_the_batch_of_both() -> None:
    finished = torchrun(WORKER)
    assert finished.returncode == 0, finished.stderr
    assert "outputs, gradients and statistics agree" in finished.stdout
