"""GoogLeNet and BN-Inception as backbones; without their weights, which cannot be fetched here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from training_script import TINY, has_timm

if not has_timm():
    pytest.skip("timm cannot be imported", allow_module_level=True)

from torchvision.models import googlenet

from benchmarks.papers.inception import build_inception
from benchmarks.papers.model import build_model, weights_name
from benchmarks.papers.presets import read_settings
from benchmarks.papers.settings import Settings


def has_pretrainedmodels() -> bool:
    try:
        build_inception("bninception")
    except ImportError:
        return False
    return True


needs_pretrainedmodels = pytest.mark.skipif(not has_pretrainedmodels(), reason="needs pretrainedmodels")
NETWORKS = ["googlenet", pytest.param("bninception", marks=needs_pretrainedmodels)]


def read(flags: str) -> Settings:
    return read_settings([*TINY, *flags.split()])


def network(name: str) -> Any:
    """With its classifier, as its package has it."""
    torch.manual_seed(0)
    built = build_inception(name) if name == "bninception" else googlenet(aux_logits=False, init_weights=True)
    return built.eval()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("pooling", ["avg", "max"])
def test_features_are_the_networks_with_the_colours_that_its_weights_expect(
    name: str, pooling: str, tmp_path: Path
) -> None:
    source = network(name)
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    settings = read(
        f"--pretrained --backbone {name} --weights {tmp_path / 'weights.pth'} --pooling {pooling}"
    )
    model, config = build_model(settings, num_calls=1)
    colours = torch.rand(2, 3, 64, 64)  # red, green and blue from 0 to 1
    mean, std = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))
    found = model.backbone.eval()((colours - mean) / std)

    if name == "googlenet":  # from -1 to 1
        maps = 2 * colours - 1
        for key, part in source.named_children():
            if key not in ("avgpool", "dropout", "fc"):
                maps = part(maps)
    else:  # blue, green and red from 0 to 255
        maps = source.features(255 * colours.flip(1) - torch.tensor([104.0, 117, 128]).view(3, 1, 1))
    expected = maps.mean((2, 3)) if pooling == "avg" else maps.amax((2, 3))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert weights_name(settings) == f"{name} from {tmp_path / 'weights.pth'}"


@pytest.mark.parametrize("name", NETWORKS)
def test_all_parameters_are_trained_and_heads_may_pool(name: str) -> None:
    model, _ = build_model(read(f"--backbone {name} --head gem"), num_calls=1)
    model(torch.randn(4, 3, 64, 64)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.backbone.parameters())
    assert model.backbone(torch.randn(4, 3, 64, 64)).shape == (4, 1024, 2, 2)
