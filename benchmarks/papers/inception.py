"""GoogLeNet and BN-Inception, which timm does not have, in the form of timm's backbones."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn

FEATURES = 1024
# The weights of each; those of BN-Inception are Caffe's, in the form of the package pretrainedmodels.
INCEPTIONS = {
    "googlenet": "https://download.pytorch.org/models/googlenet-1378be20.pth",
    "bninception": "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth",
}


class InceptionBackbone(nn.Module):
    """Images (B, 3, H, W) to features (B, 1024), or to maps (B, 1024, h, w) where ``pool`` leaves them.

    `pretrained_cfg` is what timm's `resolve_data_config` asks its own models for.
    """

    num_features = FEATURES

    def __init__(self, name: str, network: nn.Module, pool: nn.Module) -> None:
        super().__init__()
        if name == "googlenet":
            dropped = ("avgpool", "dropout", "fc")
            parts = [part for key, part in network.named_children() if key not in dropped]
            self.maps: nn.Module = nn.Sequential(*parts)
            mean = std = (0.5, 0.5, 0.5)
        else:
            self.maps = _BNInceptionMaps(network)
            mean, std = (128 / 255, 117 / 255, 104 / 255), (1 / 255,) * 3
        self.pool = pool
        self.pretrained_cfg = {
            "input_size": (3, 224, 224),
            "mean": mean,
            "std": std,
            "interpolation": "bilinear",
            "crop_pct": 224 / 256,
        }

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(self.maps(images))


class _BNInceptionMaps(nn.Module):
    """Images with the channels red, green, blue; the network has them the other way round."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        network.last_linear = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return self.network.features(images.flip(1))


def build_inception(name: str) -> Any:
    """Returns one of `INCEPTIONS`, untrained and with its classifier."""
    if name == "googlenet":
        from torchvision.models import googlenet

        return googlenet(weights=None, aux_logits=False, init_weights=True)
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
