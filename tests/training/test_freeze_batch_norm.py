from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from pml_xbn.training import freeze_batch_norm


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(64, 2))
    model(torch.randn(8, 3, 6, 6) + 1)  # which gives the layer its statistics
    return model


def unchanged(model: nn.Module) -> nn.Module:
    return model


def pickled(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))


def averaged(model: nn.Module) -> Any:
    return AveragedModel(model).module


@pytest.mark.parametrize("kept", [unchanged, copy.deepcopy, pickled, averaged])
def test_a_frozen_layer_and_its_copies_keep_their_statistics_in_training(
    kept: Callable[[nn.Module], Any],
) -> None:
    model = network()
    assert freeze_batch_norm(model) == 1
    model = kept(model)
    model.train()
    layer, dropout = model[1], model[2]
    assert (layer.training, dropout.training) == (False, True)
    mean, var = layer.running_mean.clone(), layer.running_var.clone()
    features = 3 * torch.randn(5, 4, 4, 4) + 2
    normalized = layer(features)
    expected = (features.double() - mean.double()[:, None, None]) / (var.double() + layer.eps).sqrt()[
        :, None, None
    ]
    torch.testing.assert_close(normalized.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close((layer.running_mean, layer.running_var), (mean, var), rtol=0, atol=0)
    normalized.sum().backward()
    assert layer.weight.grad is not None  # its weights still train


def test_a_copy_is_frozen_by_itself() -> None:
    """A frozen copy must not hold on to the layer of the model that it was made from."""
    model = network()
    freeze_batch_norm(model)
    copied = copy.deepcopy(model)
    assert copied[1].train() is copied[1]


def test_layers_without_batch_norm_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Dropout())
    assert freeze_batch_norm(model) == 0
    assert all(layer.training for layer in model.modules())


def test_a_layer_without_running_statistics_is_refused_and_nothing_has_changed() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(ValueError, match=r"layer '1' is a BatchNorm1d without running statistics: build"):
        freeze_batch_norm(model)
    assert model[0].training
    assert model.eval().train()[0].training
