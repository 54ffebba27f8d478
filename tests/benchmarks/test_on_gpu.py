"""The command for a GPU: what its checks notice, what it writes, and what trains from prepared data."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from efficientnet_wheel import write_weights
from emoji_packages import write_emoji
from torch import nn

from benchmarks.demo.settings import Settings
from benchmarks.engine.efficientnet import LateStages, frozen_features, load_network
from benchmarks.engine.results import read_csv
from benchmarks.on_gpu.contract import losses, resuming, rows, run, waits
from benchmarks.on_gpu.contract.check import Check, Outcome, relative_error
from benchmarks.on_gpu.deadline import Deadline
from benchmarks.on_gpu.table import Table
from benchmarks.on_gpu.train import prepared
from benchmarks.on_gpu.train.data import PreparedSource
from benchmarks.on_gpu.train.last_stage import LastStage
from benchmarks.on_gpu.train.prepare import prepare
from benchmarks.on_gpu.train.workers import Failure, Workers
from benchmarks.study.budget import Budget
from benchmarks.study.data_sets import Roots
from docs.pictures.on_gpu import gpu_report
from pml_xbn.adapters import MomentMatching
from pml_xbn.adapters.moments import Moments

CPU = torch.device("cpu")


def test_errors_are_relative_and_nothing_hides_in_nan_or_another_shape() -> None:
    assert relative_error([torch.tensor([1.0, 4.5])], [torch.tensor([1.0, 4.0])]) == pytest.approx(0.125)
    nan = torch.tensor([1.0, float("nan")])
    assert relative_error([nan], [torch.ones(2)]) == float("inf")
    assert relative_error([nan], [nan]) == 0
    assert relative_error([torch.ones(2)], [torch.ones(1)]) == float("inf")


def test_a_map_that_is_a_little_off_fails_the_check_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    check = next(rows.checks(40))
    assert passes(check)

    def estimate(self: MomentMatching, batch: Moments, size: int) -> Moments:
        return Moments(batch.mean, batch.std * 1.001)

    monkeypatch.setattr(MomentMatching, "estimate", estimate)
    assert not passes(check)


def test_a_loss_that_is_a_little_off_fails_both_of_its_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    named = [check for check in losses.checks() if check.case == "SupConLoss, no miner"]
    assert len(named) == 2
    assert all(map(passes, named))
    step = losses.step

    def off(memory: nn.Module, *args: object, **options: object) -> list[torch.Tensor]:
        is_float32 = memory.memory_dtype == torch.float32
        return [x * (1.001 if is_float32 else 1) for x in step(memory, *args, **options)]

    monkeypatch.setattr(losses, "step", off)
    assert not any(map(passes, named))


def test_a_state_that_is_not_loaded_fails_the_check_of_resuming(monkeypatch: pytest.MonkeyPatch) -> None:
    check = next(resuming.checks())
    assert passes(check)
    monkeypatch.setattr(resuming._Training, "load", lambda self, saved: None)
    assert not passes(check)


def test_a_step_that_reads_a_number_fails_the_check_of_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    check = next(waits.checks())
    assert passes(check)
    gain = MomentMatching.gain

    def read(self: MomentMatching, batch_size: int) -> float:
        return gain(self, batch_size) + 0 * self.estimated.mean.sum().item()

    monkeypatch.setattr(MomentMatching, "gain", read)
    assert not passes(check)


def passes(check: Check) -> bool:
    outcome = check.run(CPU)
    return outcome.error <= outcome.tolerance


def test_checks_are_rows_at_once_fail_by_themselves_and_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail(device: torch.device) -> Outcome:
        calls.append("fail")
        raise RuntimeError("out of\nmemory")

    def look(device: torch.device) -> Outcome:
        calls.append("look")
        assert [row["message"] for row in read_csv(tmp_path / run.FILE)] == ["RuntimeError: out of memory"]
        return Outcome(0.5, 1)

    checks = [Check("a", "b", "float32", fail), Check("a", "c", "float32", look)]
    monkeypatch.setattr(run, "checks", lambda is_tiny: iter(checks))
    assert run.run(tmp_path, CPU, Deadline(1), True) == 1
    assert run.run(tmp_path, CPU, Deadline(1), True) == 0
    assert calls == ["fail", "look"]
    written = read_csv(tmp_path / run.FILE)
    assert [row["passed"] for row in written] == ["False", "True"]
    assert all(row["device"] and row["driver"] and row["torch"] and row["dtype"] for row in written)
    assert run.run(tmp_path / "other", CPU, Deadline(-1), True) == 0
    assert read_csv(tmp_path / "other" / run.FILE) == []


def test_a_table_of_other_columns_is_not_added_to(tmp_path: Path) -> None:
    Table(tmp_path / "a.csv", ["x"], ["x"]).append({"x": 1})
    with pytest.raises(ValueError, match="columns x, not x, y: pass another folder"):
        Table(tmp_path / "a.csv", ["x", "y"], ["x"])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(write_weights(tmp_path_factory.mktemp("site")))
        yield load_network()


@pytest.mark.parametrize("batch_norm", ["batch", "frozen", "frozen weights"])
def test_the_last_stage_is_that_of_timm(network: nn.Module, batch_norm: str) -> None:
    """Forward and backward, in training and in evaluation mode."""
    late = LateStages(network, 5, batch_norm=batch_norm)
    weights = list(LateStages(network, 5)[0].state_dict().values())
    plain = LastStage(weights, 5, batch_norm)
    plain[1].load_state_dict(late[1].state_dict())
    early, _ = frozen_features(network, torch.rand(8, 3, 64, 64))
    for is_training in (True, False):
        found, expected = plain.train(is_training)(early), late.train(is_training)(early)
        torch.testing.assert_close(found, expected)
        gradients = []
        for model, value in ((plain, found), (late, expected)):
            model.zero_grad()
            value.square().sum().backward()
            gradients.append([x.grad for x in model.parameters() if x.grad is not None])
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("network")
def test_prepared_data_are_those_of_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_emoji(tmp_path, classes=48)
    path = tmp_path / "data.gz"
    prepare(path, tmp_path, classes=8)
    settings = Settings(classes=8, batch_size=8, norm="frozen")
    for is_kept_back in (False, True):
        budget = Budget("pretrained", 1, is_kept_back=is_kept_back)
        ours, theirs = (
            x.open(settings, budget) for x in (PreparedSource(path, "cpu"), Roots(tmp_path, tmp_path))
        )
        for found, expected in ((ours.train, theirs.train), (ours.test, theirs.test)):
            assert torch.equal(found.images, expected.images)
            assert torch.equal(found.labels, expected.labels)
        assert torch.equal(ours.images(0, 0), theirs.images(0, 0))
    budget = Budget("glyphs", 1)
    ours, theirs = (
        x.open(settings, budget) for x in (PreparedSource(path, "cpu"), Roots(tmp_path, tmp_path))
    )
    assert torch.equal(ours.test.images, theirs.test.images)
    assert torch.equal(ours.images(0, 0), theirs.images(0, 0))
    with pytest.raises(ValueError, match="holds no data for the regime 'emoji, 60 epochs'"):
        PreparedSource(path, "cpu").open(settings, Budget("emoji", 60))
    monkeypatch.setattr(prepared, "LARGEST", 1000)
    with pytest.raises(ValueError, match="prepare fewer classes"):
        prepared.save(prepared.load(path), path)


def test_workers_answer_fail_alone_and_can_be_ended_at_work() -> None:
    with Workers(2) as workers:
        workers.tell(0, divmod, 7, 2)
        workers.tell(1, divmod, 7, 0)
        answers = workers.all_answers({0, 1}, 60)
        assert answers[0] == (3, 1)
        assert isinstance(answers[1], Failure)
        assert "ZeroDivisionError" in answers[1].message
        workers.tell(1, time.sleep, 600)
        began = time.monotonic()
        workers.keep(1)
        assert time.monotonic() - began < 10
        workers.tell(0, divmod, 9, 2)
        assert workers.all_answers({0}, 60) == {0: (4, 1)}


def test_the_page_has_a_part_per_gpu_and_no_figure_of_a_cpu(tmp_path: Path) -> None:
    assert "Nothing has been measured on a GPU yet" in gpu_report(tmp_path)
    columns = ["name", "case", "dtype", "passed", "error", "tolerance", "device", "driver", "torch"]
    table = Table(tmp_path / "gpu_contract.csv", columns, columns)
    row = ["rows", "XBN", "float32", "True", "1e-7", "1e-5", "a CPU", "none", "2.13"]
    table.append(dict(zip(columns, row, strict=True)))
    assert "Nothing has been measured on a GPU yet" in gpu_report(tmp_path)
    for case, passed, error in (("XBN", "True", "2e-7"), ("AXBN", "False", "3e-2")):
        on_gpu = ["rows", case, "float32", passed, error, "1e-5", "a GPU", "550", "2.13"]
        table.append(dict(zip(columns, on_gpu, strict=True)))
    report = gpu_report(tmp_path)
    assert "| rows | float32 | 1 of 2 | 3e-2 | 1e-5 | AXBN |" in report
    assert "**a GPU**, driver 550, torch 2.13" in report
    assert "a CPU" not in report


def test_a_run_on_a_gpu_stands_beside_the_same_seeds_on_a_cpu(tmp_path: Path) -> None:
    columns = ["method", "refresh_every", "batch_size", "memory_ratio", "norm", "regime", "seed"]
    columns += ["recall_at_1", "device", "driver", "torch"]
    table = Table(tmp_path / "study_runs.csv", columns, columns)
    for method, seed, recall, device, driver in (
        ("xbn", 1, 40.0, "a GPU", "550"),
        ("xbn", 2, 50.0, "a GPU", "550"),
        ("xbn", 1, 44.0, "a CPU", "none"),
        ("xbn", 2, 48.0, "a CPU", "none"),
        ("xbn", 3, 10.0, "a CPU", "none"),
        ("centre", 1, 30.0, "a GPU", "550"),
    ):
        values = [method, 0, 16, 0.5, "frozen", "pretrained", seed, recall, device, driver, "2.13"]
        table.append(dict(zip(columns, values, strict=True)))
    report = gpu_report(tmp_path)
    assert "| xbn | 45.0 | 46.0 | 2 |" in report
    assert "| centre | 30.0 | – | 1 |" in report


def test_waits_that_are_counted_stand_beside_the_checks_and_not_among_them(tmp_path: Path) -> None:
    columns = ["name", "case", "dtype", "passed", "error", "tolerance", "device", "driver", "torch"]
    table = Table(tmp_path / "gpu_contract.csv", columns, columns)
    for name, case, error, tolerance in (
        ("rows", "XBN", 1e-7, 1e-5),
        ("waits of a step, noted", "XBN, MarginLoss, no miner, nonfinite=ignore", 3.0, float("inf")),
        ("waits of a step, noted", "XBN, MarginLoss, AngularMiner, nonfinite=ignore", 9.0, float("inf")),
    ):
        values = [name, case, "float32", True, error, tolerance, "a GPU", "550", "2.13"]
        table.append(dict(zip(columns, values, strict=True)))
    report = gpu_report(tmp_path)
    assert "| rows | float32 | 1 of 1 | 1e-07 | 1e-05 | XBN |" in report
    assert "| MarginLoss | 3 | – | AngularMiner: 9 |" in report
    assert "noted" not in report
