"""What one rank raises, all raise; and what ranks may bring unlike each other."""

from __future__ import annotations

from pathlib import Path

from torchrun import torchrun

WORKER = Path(__file__).parents[1] / "error_worker.py"


def test_an_error_of_one_rank_is_raised_on_all_and_dtypes_may_differ() -> None:
    finished = torchrun(WORKER)
    assert finished.returncode == 0, finished.stderr
    assert "errors agree" in finished.stdout
