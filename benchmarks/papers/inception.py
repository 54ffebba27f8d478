"""GoogLeNet and BN-Inception, which timm does not have, in the form of timm's backbones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

FEATURES = 1024
# The weights of each; those of BN-Inception are Caffe's, in the form of the package pretrainedmodels.
INCEPTIONS = {
    "googlenet": "https://download.pytorch.org/models/googlenet-1378be20.pth",
    "bninception": "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth",
}


class InceptionBackbone(nn.Module):
    """Images (B, 3, H, W) to features (B, 1024), or to feature maps (B, 1024, h, w).

    Args:
        maps: gives feature maps.
        pool: makes features of them, or leaves them.
        mean, std: what the weights expect the colours to be normalized with.

    Attributes:
        num_features: 1024.
        pretrained_cfg: what timm's `resolve_data_config` asks its own models for.
    """

    num_features = FEATURES

    def __init__(self, maps: nn.Module, pool: nn.Module, mean: Any, std: Any) -> None:
        super().__init__()
        self.maps, self.pool = maps, pool
        self.pretrained_cfg = {
            "input_size": (3, 224, 224),
            "mean": mean,
            "std": std,
            "interpolation": "bilinear",
            "crop_pct": 224 / 256,
        }

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.pool(self.maps(images))
        return features


class _BNInceptionMaps(nn.Module):
    """Images with the channels red, green, blue; the network has them the other way round."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.network.features(images.flip(1))
        return maps


def build_inception(name: str, pool: nn.Module, load: Callable[[nn.Module], None]) -> InceptionBackbone:
    """One of `INCEPTIONS` without its classifier.

    Args:
        name: which.
        pool: makes features of feature maps.
        load: gives the network with its classifier its weights.

    Raises:
        ImportError: a package is missing.
    """
    if name == "googlenet":
        from torchvision.models import googlenet

        network = googlenet(weights=None, aux_logits=False, init_weights=True)
        load(network)
        parts = dict(network.named_children())
        maps = nn.Sequential(
            *[part for key, part in parts.items() if key not in ("avgpool", "dropout", "fc")]
        )
        return InceptionBackbone(maps, pool, (0.5,) * 3, (0.5,) * 3)
    network = _bninception()
    load(network)
    network.last_linear = nn.Identity()
    mean = (128 / 255, 117 / 255, 104 / 255)
    return InceptionBackbone(_BNInceptionMaps(network), pool, mean, (1 / 255,) * 3)


def _bninception() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of files that Python compiles for the first time
            from pretrainedmodels.models.bninception import bninception
    except ImportError as error:
        raise ImportError(
            f"--backbone bninception needs pretrainedmodels ({error}); install it with: "
            "pip install pretrainedmodels six"
        ) from error
    return bninception(pretrained=None)
