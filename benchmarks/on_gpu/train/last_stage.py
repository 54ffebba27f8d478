"""The last stage of EfficientNet-Lite0 in layers of torch alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks.engine.efficientnet import BatchNorm, LateStages

CHANNELS = 192  # of what the first six stages give
_WIDE, _NARROW, NUM_FEATURES = 1152, 320, 1280
_EPS = 1e-3


class LastStage(LateStages):
    """`LateStages` that begins at the last stage, built without timm.

    Args:
        weights: of its layers in their order, and what their batch normalization keeps.
        embedding_size: length of an embedding.
        batch_norm: what batch normalization does in training mode.
    """

    def __init__(self, weights: Sequence[Tensor], embedding_size: int, batch_norm: BatchNorm) -> None:
        parts = layers()
        parts.load_state_dict(dict(zip(parts.state_dict(), weights, strict=True)))
        nn.Sequential.__init__(self, parts, nn.Linear(NUM_FEATURES, embedding_size))
        self.has_fixed_statistics = batch_norm != "batch"
        if batch_norm == "frozen weights":
            for module in parts.modules():
                if isinstance(module, _BatchNorm):
                    module.requires_grad_(False)


def layers() -> nn.Sequential:
    """Returns an inverted residual block of which nothing is added, the head, and pooling."""
    return nn.Sequential(
        *_normalized(nn.Conv2d(CHANNELS, _WIDE, 1, bias=False), nn.ReLU6(inplace=True)),
        *_normalized(nn.Conv2d(_WIDE, _WIDE, 3, padding=1, groups=_WIDE, bias=False), nn.ReLU6(inplace=True)),
        *_normalized(nn.Conv2d(_WIDE, _NARROW, 1, bias=False)),
        *_normalized(nn.Conv2d(_NARROW, NUM_FEATURES, 1, bias=False), nn.ReLU6(inplace=True)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def _normalized(convolution: nn.Conv2d, *activation: nn.Module) -> tuple[nn.Module, ...]:
    return convolution, nn.BatchNorm2d(convolution.out_channels, eps=_EPS), *activation


def random_weights(seed: int) -> list[Tensor]:
    """Returns weights of no use but to try out what trains."""
    torch.manual_seed(seed)
    return list(layers().state_dict().values())
