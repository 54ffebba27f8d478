"""PML's trainer, hooks and record-keeper log what the classes record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from as_on_a_gpu import read_as
from kinds import KINDS, WRAPPERS
from pytorch_metric_learning import losses, trainers
from pytorch_metric_learning.utils import common_functions as c_f
from torch import nn
from torch.utils.data import TensorDataset

from pml_xbn import XBNWrapper

# PML's progress bar prints the loss without detaching it.
pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")

record_keeper = pytest.importorskip("record_keeper")
RECORDED = {
    "axbn": {"kalman_gain"},
    "measured gain": {"mean_gain"},
    "per class": {"share_normalized_per_group"},
    "super-class": {"share_normalized_per_group"},
}

RECORDING = (*WRAPPERS, "measured gain")


def train(loss_fn: nn.Module, end_of_iteration_hook: Callable) -> None:
    data = TensorDataset(torch.randn(32, 5), torch.arange(32) % 4)
    model = nn.Linear(5, 3)
    trainers.MetricLossOnly(
        models={"trunk": model},
        optimizers={"trunk_optimizer": torch.optim.SGD(model.parameters(), 0.1)},
        batch_size=8,
        loss_funcs={"metric_loss": loss_fn},
        dataset=data,
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
        end_of_iteration_hook=end_of_iteration_hook,
    ).train(num_epochs=1)


@pytest.mark.parametrize("name", RECORDING)
def test_trainer_logs_the_adapters_numbers(name: str, tmp_path: Path) -> None:
    logging_presets = pytest.importorskip("pytorch_metric_learning.utils.logging_presets")
    kind = KINDS[name]
    loss_fn = kind.memory(losses.ContrastiveLoss(), 3, 16, collect_stats=True)
    writer = record_keeper.RecordWriter(str(tmp_path))
    keeper = record_keeper.RecordKeeper(None, writer, c_f.list_of_recordable_attributes_list_names())
    train(loss_fn, logging_presets.HookContainer(keeper, log_freq=1).end_of_iteration_hook)

    records = writer.records
    memory = next(v for k, v in records.items() if k.endswith(f"metric_loss_{kind.memory_class.__name__}"))
    assert list(memory["num_rows"].values()) == [8, 16, 16, 16]
    numbers = next(v for k, v in records.items() if k.endswith(f"adapter_{kind.adapter_class.__name__}"))
    assert {"mean_distance", "std_ratio"} | RECORDED.get(name, set()) <= set(numbers)
    assert all(value > 0 for value in list(numbers["mean_distance"].values())[1:])
    keeper.save_records()
    assert list(tmp_path.glob("*adapter*.csv"))


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("name", RECORDING)
def test_numbers_on_a_gpu_are_those_on_a_cpu(name: str, delay: int) -> None:
    """From the first step on, which finds no rows."""
    found: dict[bool, list[float]] = {}
    for reads in (True, False):
        torch.manual_seed(0)
        loss_fn = KINDS[name].memory(losses.SupConLoss(), 3, 16, delay=delay, collect_stats=True)
        with pytest.MonkeyPatch.context() as monkeypatch:
            if not reads:
                read_as(monkeypatch, lambda _: False)
            found[reads] = []
            for _ in range(5):
                loss_fn(torch.randn(4, 3), torch.arange(4) // 2)
                found[reads] += [getattr(loss_fn.adapter, x) for x in loss_fn.adapter._record_these_stats]
    assert found[False] == pytest.approx(found[True])
    assert any(found[True])


def test_nothing_is_recorded_unless_asked_for() -> None:
    loss_fn = XBNWrapper(losses.ContrastiveLoss(), 3, 16)
    train(loss_fn, lambda trainer: None)
    assert not hasattr(loss_fn.adapter, "mean_distance")
