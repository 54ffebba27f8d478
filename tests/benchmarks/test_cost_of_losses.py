"""The cost of every loss: cases in processes of their own, and what is made of them."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro

from benchmarks.cost import loss_case, losses, room
from benchmarks.cost.embeddings import Embeddings
from benchmarks.engine.results import read_csv

SETTINGS = {"device": "cpu", "threads": 1, "repeats": 2, "time_limit_s": 20.0, "memory_limit_gb": 1.0}
TINY = ["--losses", "SupConLoss", "--classes", "n/10", "--rows", "100", "--memory-limit", "1"]
needs_limits = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux alone limits memory")


def run(folder: Path, *flags: str) -> list[dict[str, str]]:
    """What the CSV holds after a run with these flags."""
    tyro.cli(losses.main, args=["--output", str(folder), "--device", "cpu", *flags])
    return read_csv(folder / "loss_cost_cpu.csv")


def no_process(*_: Any, **__: Any) -> None:
    raise AssertionError("a case was measured again")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> subprocess.CompletedProcess[str]:
    """How every process ends, without being started."""
    process = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: process)
    return process


def outcome_of(rows: int = 100) -> dict[str, Any]:
    case = loss_case.Case("SupConLoss", "none", "n/10", "XBNWrapper", rows)
    return losses.measured(case, SETTINGS)


def test_a_run_writes_csv_and_tables_and_a_second_one_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = run(tmp_path, *TINY, "--repeats", "2")
    assert {(row["memory"], row["miner"]) for row in rows} == {
        (memory, miner) for memory in loss_case.MEMORIES for miner in ("none", "PairMarginMiner")
    }
    assert all(row["outcome"] == "fits" and float(row["times_supcon"]) > 0 for row in rows)
    page = (tmp_path / "loss_cost_cpu.md").read_text()
    assert "| 100 | 2 of 2 | 2 of 2 |" in page
    (ours,) = (row for row in rows if (row["memory"], row["miner"]) == ("XBNWrapper", "none"))
    assert f"| SupConLoss | none | {float(ours['ms']):.1f} |" in page

    monkeypatch.setattr(subprocess, "run", no_process)
    assert run(tmp_path, *TINY) == rows


@needs_limits
def test_what_does_not_fit_is_said_and_larger_ones_are_not_tried(tmp_path: Path) -> None:
    flags = ["--losses", "NTXentLoss", "--miners", "none", "--classes", "10", "--memory-limit", "0.2"]
    small, large = run(tmp_path, *flags, "--memories", "CrossBatchMemory", "--rows", "60000", "1024")
    assert small["rows"] == "1024"
    assert small["outcome"] == large["outcome"] == "does not fit"
    page = (tmp_path / "loss_cost_cpu.md").read_text()
    assert "| NTXentLoss | none | ✗ | ✗ |" in page
    assert "0.2 GB beyond what the libraries take" in page


def test_a_step_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    (row,) = run(
        tmp_path, *TINY, "--miners", "none", "--memories", "CrossBatchMemory", "--time-limit", "0.0001"
    )
    assert row["outcome"] == "over 0.0001 s"
    assert "| SupConLoss | none | > 0.0001 s |" in (tmp_path / "loss_cost_cpu.md").read_text()


@pytest.mark.parametrize(
    ("status", "errors", "outcome"),
    [
        (-signal.SIGKILL, "", "does not fit"),
        (1, "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried", "does not fit"),
        (1, "torch.cuda.OutOfMemoryError: CUDA out of memory.", "does not fit"),
        (-signal.SIGABRT, "terminate called after throwing an instance of 'std::bad_alloc'", "does not fit"),
        (-signal.SIGALRM, "", "over 20 s"),
        (1, "Traceback\nValueError: so many\n", "fails: ValueError: so many"),
        (3, "", "fails: exit status 3"),
    ],
)
def test_how_a_process_ends_says_what_the_outcome_is(
    ended: subprocess.CompletedProcess[str], status: int, errors: str, outcome: str
) -> None:
    ended.returncode, ended.stderr = status, errors
    assert outcome_of() == {"outcome": outcome}


def test_what_is_known_before_supcon_is_killed_counts(ended: subprocess.CompletedProcess[str]) -> None:
    ended.returncode, ended.stdout = -signal.SIGKILL, '{"ms": 1.5, "peak_mb": 3}\n'
    assert outcome_of() == {"outcome": "fits", "ms": 1.5, "peak_mb": 3}


def test_an_interrupt_is_no_outcome(ended: subprocess.CompletedProcess[str]) -> None:
    ended.returncode = -signal.SIGINT
    with pytest.raises(KeyboardInterrupt):
        outcome_of()


def test_a_failure_says_nothing_about_larger_memories(
    tmp_path: Path, ended: subprocess.CompletedProcess[str]
) -> None:
    ended.returncode = 3
    rows = run(tmp_path, *TINY, "--rows", "100", "200", "--miners", "none")
    assert [row["outcome"] for row in rows] == ["fails: exit status 3"] * 4


@needs_limits
def test_the_room_of_a_miner_that_fits_and_of_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MINERS", ("AngularMiner", "PairMarginMiner"))
    monkeypatch.setattr(room, "LOSSES", [])
    monkeypatch.setattr(room, "CLASSES", ("10",))
    room.main(rows=2_000, repeats=1, memory_limit=1.0, device="cpu", output=tmp_path)
    assert [row["outcome"] for row in read_csv(tmp_path / "room_cpu.csv")] == ["does not fit", "fits"]
    lines = (tmp_path / "room_cpu.md").read_text().splitlines()
    assert "| AngularMiner | ✗ | ✗ |" in lines
    (fits,) = (line for line in lines if line.startswith("| PairMarginMiner |"))
    _, _, peak, time, _ = fits.split("|")
    assert float(peak) >= 2_000 * 512 * 4 / 1e6
    assert float(time) == float(f"{float(time):.1g}")


def test_classes_are_nearer_to_themselves_than_to_others() -> None:
    data = Embeddings(100, torch.device("cpu"))
    rows, labels = data.draw(100, 4)
    distances = torch.cdist(rows, rows)
    is_same = labels[:, None] == labels
    assert torch.allclose(rows.norm(dim=1), torch.ones(len(rows)))
    assert distances[is_same & (distances > 0.01)].mean().item() == pytest.approx(0.65, abs=0.05)
    assert distances[~is_same].mean().item() == pytest.approx(0.9, abs=0.05)
