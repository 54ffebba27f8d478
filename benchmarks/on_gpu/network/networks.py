"""Networks that turn images into embeddings of 512 numbers."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from torch import nn

from benchmarks.cost.embeddings import DIM

RESNET, VIT, RESNET_18, LAYERS = "ResNet-50", "ViT-B/16", "ResNet-18", "three convolutions"
_TIMM = {RESNET: "resnet50", VIT: "vit_base_patch16_224", RESNET_18: "resnet18"}
_TORCHVISION = {RESNET: "resnet50", VIT: "vit_b_16", RESNET_18: "resnet18"}


def names(is_tiny: bool) -> tuple[str, ...]:
    """Returns the networks that are measured; tiny steps need no package of networks."""
    if not is_tiny:
        return RESNET, VIT
    return (RESNET_18 if find_spec("timm") or find_spec("torchvision") else LAYERS,)


def build(name: str) -> nn.Module:
    """Returns a network of random weights.

    Raises:
        ModuleNotFoundError: there is neither timm nor torchvision.
    """
    if name == LAYERS:
        return _layers()
    if find_spec("timm"):
        import timm

        network: Any = timm.create_model(_TIMM[name], num_classes=DIM)
    elif find_spec("torchvision"):
        from torchvision import models

        network = getattr(models, _TORCHVISION[name])(num_classes=DIM)
    else:
        raise ModuleNotFoundError(f"{name} needs timm or torchvision: pip install timm")
    built: nn.Module = network
    return built


def _layers() -> nn.Module:
    widths = (3, 8, 16, 32)
    blocks = [
        nn.Sequential(nn.Conv2d(before, after, 3, stride=2), nn.BatchNorm2d(after), nn.ReLU())
        for before, after in pairwise(widths)
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], DIM))
