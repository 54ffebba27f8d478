"""The command for a GPU: what it writes and when, and what trains from prepared data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from efficientnet_wheel import write_weights
from emoji_packages import write_emoji
from torch import nn

from benchmarks.demo.settings import Settings
from benchmarks.engine.efficientnet import LateStages, frozen_features, load_network
from benchmarks.engine.results import read_csv
from benchmarks.on_gpu.deadline import Deadline
from benchmarks.on_gpu.rows import columns_of, write_rows
from benchmarks.on_gpu.table import Table
from benchmarks.on_gpu.train import prepared
from benchmarks.on_gpu.train.data import PreparedSource
from benchmarks.on_gpu.train.last_stage import LastStage
from benchmarks.on_gpu.train.prepare import prepare
from benchmarks.on_gpu.train.workers import Failure, Workers
from benchmarks.study.budget import Budget
from benchmarks.study.data_sets import Roots

CPU = torch.device("cpu")


class Cell(NamedTuple):
    method: str


def test_a_row_is_on_the_disk_at_once_fails_by_itself_and_is_not_measured_again(tmp_path: Path) -> None:
    path, calls = tmp_path / "cells.csv", []

    def measure(cell: Cell) -> dict[str, float]:
        calls.append(cell.method)
        if cell.method == "fails":
            raise RuntimeError("no\nkernel")
        if cell.method == "is too large":
            raise torch.OutOfMemoryError("24 GiB")
        assert [row["message"] for row in read_csv(path)] == [
            "RuntimeError: no kernel",
            "OutOfMemoryError: 24 GiB",
        ]
        return {"ms": 1.5}

    cells = [Cell("fails"), Cell("is too large"), Cell("works")]

    def write(deadline: Deadline) -> int:
        table = Table(path, columns_of(Cell, ("ms",)), ("method", "device", "torch"))
        return write_rows("cells", table, cells, measure, CPU, deadline, 10.0)

    assert write(Deadline(0.1)) == 0  # six seconds are too few
    assert not calls
    assert write(Deadline(1.0)) == 1  # a device that is too small is a finding
    assert write(Deadline(1.0)) == 0
    assert calls == [cell.method for cell in cells]
    *_, last = read_csv(path)
    assert (last["method"], last["ms"], last["message"]) == ("works", "1.5", "")
    assert all(row["device"] and row["driver"] and row["torch"] for row in read_csv(path))


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
