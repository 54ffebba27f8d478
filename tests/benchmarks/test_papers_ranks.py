from __future__ import annotations

from pathlib import Path

import pytest
import torch
from forked import run_ranks
from training_script import TINY, assert_equal, has_timm, result_of, run_script, state_of

WORKER = Path(__file__).parents[1] / "support" / "training_rank_worker.py"


@pytest.mark.skipif(not has_timm(), reason="timm cannot be imported")
def test_two_ranks_train_stop_together_and_resume_exactly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flags = ["--method", "axbn", "--memory-ratio", "0.2", "--no-nmi", "--images-per-class", "2"]
    flags = [*flags, "--limit-classes", "7"]  # 83 test images, an odd number
    flags = [*flags, "--beside", "CenterContrastiveLoss"]
    finished = run_ranks(WORKER, str(tmp_path), *TINY, *flags)
    assert finished.returncode == 0, finished.stderr
    assert "on 2 × cpu" in finished.stdout
    assert finished.stdout.count("| Recall@1 |") == 4
    assert finished.stdout.count("stopped, and saved in") == 1
    assert "epoch 2:  50%" in finished.stderr  # where the resumed run began
    assert_equal(state_of(tmp_path / "stopped"), state_of(tmp_path / "whole"))
    assert result_of(tmp_path / "stopped") == result_of(tmp_path / "whole")

    # All ranks measure, which leaves no trace in the training of both.
    whole, unwatched = (state_of(tmp_path / name)["run"] for name in ("whole", "unwatched"))
    assert max(row["before_maximum"] for row in whole["history"]["diagnostics"]["staleness"]) > 0
    for part in ("model", "optimizer", "loss_fn"):
        assert_equal(whole[part], unwatched[part])
    run_script(monkeypatch, tmp_path / "frozen", *flags, "--freeze-bn")
    states = [state_of(tmp_path / name) for name in ("in-parts", "frozen")]
    assert [state["identity"]["ranks"] for state in states] == [2, 1]
    parts, whole = (state["run"] for state in states)
    first_losses = [run["history"]["steps"][0]["loss"] for run in (parts, whole)]
    assert first_losses[0] == pytest.approx(first_losses[1], rel=1e-4)  # of the anchors of both ranks
    for name, value in whole["model"].items():
        torch.testing.assert_close(parts["model"][name], value, rtol=1e-4, atol=1e-4, msg=name)
