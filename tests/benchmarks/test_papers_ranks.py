"""The papers' command on two ranks stops on both together, resumes exactly, and measures without a trace."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from ranks import Pools, on_ranks
from torch import distributed
from training_script import TINY, assert_equal, has_timm, result_of, run_script, state_of

from benchmarks.engine.ranks import Ranks
from benchmarks.engine.run import Run

pytestmark = pytest.mark.skipif(not has_timm(), reason="timm cannot be imported")

FLAGS = [
    *("--method", "axbn", "--memory-ratio", "0.2", "--no-nmi", "--images-per-class", "2"),
    *("--limit-classes", "7"),  # 83 test images, an odd number
    *("--beside", "CenterContrastiveLoss"),
]


def train(output: Path, flags: Sequence[str] = ()) -> tuple[str, str]:
    """Trains as one of the ranks, which stay together, and returns what it prints."""
    command = ["papers", *TINY, *FLAGS, "--output", str(output), *flags]
    with (
        patch.object(sys, "argv", command),
        patch.object(Ranks, "leave"),
        warnings.catch_warnings(),
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
    ):
        warnings.simplefilter("default")
        importlib.import_module("benchmarks.papers.__main__").main()
    return out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def whole(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks write that nobody stops."""
    output = tmp_path_factory.mktemp("papers") / "whole"
    pools.run(train, 2, timeout=300, output=output)
    return output


@on_ranks(2, timeout=300)
def test_ranks_stop_together_when_one_is_told_to_and_resume_exactly(whole: Path, tmp_path: Path) -> None:
    train_step, is_first = Run._train_step, distributed.get_rank() == 0

    def train_step_and_interrupt(run: Run, *batch: Any) -> None:
        """Sends Ctrl-C to the second rank alone, in the first step of the second epoch."""
        train_step(run, *batch)
        if (run.epoch, run.step, run.task.ranks.rank) == (1, 0, 1):
            for _ in range(2):  # from the terminal, and from torchrun
                os.kill(os.getpid(), signal.SIGINT)

    with (
        patch.object(Run, "_train_step", train_step_and_interrupt),
        patch("builtins.print") as told,
        pytest.raises(SystemExit, match="130"),
    ):
        train(tmp_path)
    assert sum("stopped, and saved in" in str(call) for call in told.call_args_list) == is_first

    out, err = train(tmp_path, ["--resume"])
    assert ("on 2 × cpu" in out) == is_first
    assert out.count("| Recall@1 |") == is_first
    assert ("epoch 2:  50%" in err) == is_first  # where the resumed run began
    distributed.barrier()
    assert_equal(state_of(tmp_path), state_of(whole))
    assert result_of(tmp_path) == result_of(whole)


def test_all_ranks_measure_which_leaves_no_trace_in_training(
    pools: Pools, whole: Path, tmp_path: Path
) -> None:
    pools.run(train, 2, timeout=300, output=tmp_path, flags=["--diagnostics-every", "0"])
    watched, unwatched = (state_of(output)["run"] for output in (whole, tmp_path))
    assert max(row["before_maximum"] for row in watched["history"]["diagnostics"]["staleness"]) > 0
    for part in ("model", "optimizer", "loss_fn"):
        assert_equal(watched[part], unwatched[part])


def test_ranks_that_accumulate_parts_train_as_one_process(
    pools: Pools, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_parts = ["--freeze-bn", "--accumulate", "2"]
    pools.run(train, 2, timeout=300, output=tmp_path / "in-parts", flags=in_parts)
    run_script(monkeypatch, tmp_path / "frozen", *FLAGS, "--freeze-bn")
    states = [state_of(tmp_path / name) for name in ("in-parts", "frozen")]
    assert [state["identity"]["ranks"] for state in states] == [2, 1]
    parts, whole = (state["run"] for state in states)
    first_losses = [run["history"]["steps"][0]["loss"] for run in (parts, whole)]
    assert first_losses[0] == pytest.approx(first_losses[1], rel=1e-4)  # of the anchors of both ranks
    for name, value in whole["model"].items():
        torch.testing.assert_close(parts["model"][name], value, rtol=1e-4, atol=1e-4, msg=name)
