from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn

from pml_xbn.training import FrozenBatchNorm, GradCache, freeze_batch_norm


class NormAndDrop(nn.BatchNorm2d):
    """A layer of a kind of its own, as timm has them with an activation."""

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        self.drop = nn.Dropout(0.5)

    def forward(self, features: Tensor) -> Tensor:
        dropped: Tensor = self.drop(super().forward(features))
        return dropped


def network(kind: type[nn.BatchNorm2d] = nn.BatchNorm2d) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), kind(4), nn.Dropout(), nn.Flatten(), nn.Linear(64, 2))
    model(torch.randn(8, 3, 6, 6) + 1)  # which gives the layer its statistics
    return model


def unchanged(model: nn.Module) -> nn.Module:
    return model


def converted(model: nn.Module) -> Any:
    """As Lightning's ``Trainer(sync_batchnorm=True)`` does."""
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)


def reset(model: nn.Module) -> nn.Module:
    for layer in model.modules():
        if hasattr(layer, "reset_running_stats"):
            layer.reset_running_stats()
    return model


def updated(model: nn.Module) -> nn.Module:
    """As recipes for averaged weights do at their end."""
    update_bn([torch.randn(8, 3, 6, 6) + 5], model)
    return model


def assigned(model: nn.Module) -> nn.Module:
    for layer in model.modules():
        layer.training = True
    return model


def twice(model: nn.Module) -> nn.Module:
    assert freeze_batch_norm(model) == 1
    return model


def loaded(model: nn.Module) -> nn.Module:
    other = network(NormAndDrop if hasattr(model[1], "drop") else nn.BatchNorm2d)
    freeze_batch_norm(other)
    other.load_state_dict(model.state_dict())
    return other


def compiled(model: nn.Module) -> Any:
    whole = torch.compile(model, backend="eager", fullgraph=True)
    whole(torch.randn(8, 3, 6, 6))
    return whole._orig_mod


def pickled(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))


def averaged(model: nn.Module) -> Any:
    return AveragedModel(model).module


KEPT = [
    unchanged,
    copy.deepcopy,
    pickled,
    averaged,
    converted,
    reset,
    updated,
    assigned,
    twice,
    loaded,
    compiled,
]


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, NormAndDrop, nn.SyncBatchNorm])
@pytest.mark.parametrize("kept", KEPT)
def test_a_frozen_layer_and_its_copies_keep_their_statistics_in_training(
    kept: Callable[[nn.Module], Any], kind: type[nn.BatchNorm2d]
) -> None:
    model = network(nn.BatchNorm2d if kind is nn.SyncBatchNorm else kind)
    if kind is nn.SyncBatchNorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    mean, var = model[1].running_mean.clone(), model[1].running_var.clone()
    assert freeze_batch_norm(model) == 1
    model = kept(model)
    model.train()
    layer, dropout = model[1], model[2]
    assert dropout.training
    if kind is NormAndDrop:
        assert layer.drop.training
        layer.drop.p = 0.0
    features = 3 * torch.randn(5, 4, 4, 4) + 2
    normalized = layer(features)
    expected = (features.double() - mean.double()[:, None, None]) / (var.double() + layer.eps).sqrt()[
        :, None, None
    ]
    torch.testing.assert_close(normalized.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close((layer.running_mean, layer.running_var), (mean, var), rtol=0, atol=0)
    assert layer.num_batches_tracked == 1
    normalized.sum().backward()
    assert layer.weight.grad is not None  # its weights still train


def test_the_names_of_a_state_stay() -> None:
    model = network()
    frozen = copy.deepcopy(model)
    freeze_batch_norm(frozen)
    torch.testing.assert_close(frozen.state_dict(), model.state_dict(), rtol=0, atol=0)
    model.load_state_dict(frozen.state_dict())
    assert "FrozenBatchNorm(4, eps=1e-05" in repr(frozen)
    own = network(NormAndDrop)
    freeze_batch_norm(own)
    assert "NormAndDrop, 4, eps=1e-05" in repr(own)


def test_a_layer_under_two_names_is_one() -> None:
    norm = nn.BatchNorm1d(4)
    model = nn.ModuleDict({"norm": norm, "layers": nn.Sequential(nn.Linear(2, 4), norm)})
    assert freeze_batch_norm(model) == 1
    assert model["norm"] is model["layers"][1]
    assert isinstance(model["norm"], FrozenBatchNorm)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_frozen_model_can_be_scripted_and_a_scripted_one_cannot_be_frozen() -> None:
    model = nn.Sequential(*network()[:2], nn.Flatten())
    with pytest.raises(ValueError, match="layer '1' is a scripted BatchNorm2d, which trains on: freeze"):
        freeze_batch_norm(torch.jit.script(model))
    freeze_batch_norm(model)
    scripted, images = torch.jit.script(model), torch.randn(8, 3, 6, 6)
    before = scripted.state_dict()["1.running_mean"].clone()
    for one in (scripted, GradCache(scripted, 3)):
        torch.testing.assert_close(one.train()(images), model(images))
    assert torch.equal(scripted.state_dict()["1.running_mean"], before)
    assert freeze_batch_norm(scripted) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_frozen_layer_of_a_class_of_its_own_is_traced_and_not_scripted() -> None:
    model, images = network(NormAndDrop), torch.randn(8, 3, 6, 6)
    freeze_batch_norm(model.eval())
    with pytest.raises(TypeError, match=r"of class NormAndDrop cannot be scripted.*call torch.jit.trace"):
        torch.jit.script(model)
    traced = torch.jit.trace(model, images)
    before = model[1].running_mean.clone()
    torch.testing.assert_close(traced.train()(images), model(images))
    assert torch.equal(traced.state_dict()["1.running_mean"], before)


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
    with pytest.raises(ValueError, match=r"layer '1' is a LazyBatchNorm1d that has not seen a batch: load"):
        freeze_batch_norm(nn.Sequential(model[0], nn.LazyBatchNorm1d()))
    assert type(model[0]) is nn.BatchNorm1d
    assert model.eval().train()[0].training
