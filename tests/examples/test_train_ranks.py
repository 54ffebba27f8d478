from __future__ import annotations

from pathlib import Path

import pytest
from torchrun import torchrun
from training_script import TINY, assert_equal, has_timm, result_of, state_of

TESTS = Path(__file__).parents[1]


@pytest.mark.skipif(not has_timm(), reason="timm cannot be imported")
def test_two_ranks_train_stop_together_and_resume_exactly(tmp_path: Path) -> None:
    flags = [*TINY, "--method", "axbn", "--memory-ratio", "0.2", "--no-nmi", "--images-per-class", "2"]
    flags = [*flags, "--limit-classes", "9"]  # 159 test images, an odd number
    finished = torchrun(TESTS / "training_rank_worker.py", str(tmp_path), *flags)
    assert finished.returncode == 0, finished.stderr
    assert "on 2 × cpu" in finished.stdout
    assert finished.stdout.count("| Recall@1 |") == 3
    assert finished.stdout.count("stopped, and saved in") == 1
    assert "epoch 2:  50%" in finished.stderr  # where the resumed run began
    assert_equal(state_of(tmp_path / "stopped"), state_of(tmp_path / "whole"))
    assert result_of(tmp_path / "stopped") == result_of(tmp_path / "whole")

    # Diagnostics are the first rank's alone, and leave no trace in the training of both.
    whole, unwatched = (state_of(tmp_path / name)["run"] for name in ("whole", "unwatched"))
    assert max(row["before_maximum"] for row in whole["history"]["diagnostics"]["staleness"]) > 0
    for part in ("model", "optimizer", "loss_fn"):
        assert_equal(whole[part], unwatched[part])
