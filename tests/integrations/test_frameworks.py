"""The examples with frameworks: a resumed run ends as a whole one, and ranks hold equal memories."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from forked import run_ranks, run_script
from training_script import assert_equal

for framework in ("accelerate", "lightning", "record_keeper", "sentence_transformers", "transformers"):
    pytest.importorskip(framework)

SUPPORT = Path(__file__).parents[1] / "support"
RECORDED_RUN = SUPPORT / "recorded_run.py"
EXAMPLES = Path(__file__).parents[2] / "examples"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
TIMEOUT = 300.0

KEPT_IN = {  # files of the frameworks, but where a callback of the example writes one
    "lightning_module": {"last.ckpt"},
    "accelerate_loop": {"custom_checkpoint_0.pkl"},
    "hugging_face_trainer": {"loss_fn.pt"},
    "sentence_transformers_loss": {"memory.pt"},
    "pml_trainer": {"metric_loss_1.pth", "metric_loss_best1.pth"},
}


def each(*names: str) -> list[Any]:
    """What concerns one example is tested by one process, which stops it once."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names]


EVERY = each(*KEPT_IN)
ACCUMULATING = EVERY[:-1]  # PML's trainers know neither accumulation nor mixed precision


class Stopped(NamedTuple):
    """A run that was killed in its second epoch.

    Attributes:
        name: of the example.
        output: of the run.
        whole: how one ends that was not killed.
    """

    name: str
    output: Path
    whole: dict[str, Any]


def run(name: str, folder: Path, *arguments: str, **environment: str) -> int:
    """The exit code of an example in a process of its own, which writes its end into ``folder``."""
    script = str(EXAMPLES / f"{name}.py")
    ended = run_script(
        RECORDED_RUN, str(folder), script, *arguments, timeout=TIMEOUT, **OFFLINE, **environment
    )
    assert ended.returncode <= 0, ended.stderr
    return ended.returncode


def end_of(folder: Path, rank: int = 0) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / f"rank{rank}.pt", weights_only=True)
    return state


@pytest.fixture(scope="module", params=EVERY)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    assert run(name, folder, "--epochs", "2", "--output", str(folder / "whole")) == 0
    whole, output = end_of(folder), folder / "stopped"
    kill = f"SIGKILL:ALL:{whole['num_steps'] * 3 // 4}"
    code = run(name, folder, "--epochs", "2", "--output", str(output), SIGNAL_AT=kill)
    assert code == -signal.SIGKILL
    return Stopped(name, output, whole)


def test_a_run_that_is_killed_and_resumed_ends_as_a_whole_one(stopped: Stopped, tmp_path: Path) -> None:
    output = shutil.copytree(stopped.output, tmp_path / "output")
    assert run(stopped.name, tmp_path, "--epochs", "2", "--output", str(output), "--resume") == 0
    end = end_of(tmp_path)
    assert end["num_steps"] == stopped.whole["num_steps"] // 2
    for part in ("weights", "optimizer", "memory"):
        assert_equal(end[part], stopped.whole[part])


def test_a_checkpoint_holds_the_memory_where_it_is_kept_and_nowhere_else(stopped: Stopped) -> None:
    files = [path for path in stopped.output.rglob("*") if path.is_file()]
    assert {path.name for path in files if b"queue.rows" in path.read_bytes()} == KEPT_IN[stopped.name]


@pytest.mark.parametrize("name", EVERY)
def test_two_processes_hold_equal_memories(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in OFFLINE.items():
        monkeypatch.setenv(variable, value)
    arguments = ["--epochs", "1", "--output", str(tmp_path / "output")]
    arguments += ["--devices", "2"] if name == "lightning_module" else []
    script = str(EXAMPLES / f"{name}.py")
    finished = run_ranks(RECORDED_RUN, str(tmp_path), script, *arguments, timeout=TIMEOUT)
    assert finished.returncode == 0, finished.stderr
    ranks = [end_of(tmp_path, rank) for rank in (0, 1)]
    for part in ("weights", "memory"):
        assert_equal(ranks[0][part], ranks[1][part])

    # The ranks saw other batches, and the memory holds the rows of both, in rank order.
    calls = list(zip(*(rank["calls"] for rank in ranks), strict=True))
    assert any(not torch.equal(first["labels"], second["labels"]) for first, second in calls)
    labels = torch.cat([call["labels"] for of_ranks in calls for call in of_ranks])
    assert_equal(ranks[0]["memory_labels"], labels)


@pytest.mark.parametrize("name", ACCUMULATING)
def test_accumulating_in_bfloat16_every_batch_is_stored_at_its_forward(name: str, tmp_path: Path) -> None:
    output = str(tmp_path / "output")
    assert run(name, tmp_path, "--epochs", "1", "--output", output, "--accumulate", "2", "--bf16") == 0
    end = end_of(tmp_path)
    calls, rows = end["calls"], end["memory"]["queue.rows"]
    assert [call["steps_before"] for call in calls] == [number // 2 for number in range(len(calls))]
    stored = torch.tensor([len(call["labels"]) for call in calls]).cumsum(0).tolist()
    assert [call["num_rows"] for call in calls] == stored
    assert_equal(end["memory_labels"], torch.cat([call["labels"] for call in calls]))

    assert end["dtypes"] == [torch.bfloat16]
    assert all(call["is_finite"] for call in calls)
    assert (rows.dtype, end["weights"][0].dtype) == (torch.float32, torch.float32)
