"""Batch normalization of one device as if there were several, which shuffling BN needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SplitBatchNorm2d(nn.BatchNorm2d):
    """Batch normalization of ``splits`` equal parts of a batch, each by its own mean and variance.

    MoCo (https://arxiv.org/abs/1911.05722, §3.3) has its keys normalised together with other images than
    their queries, or the network tells a pair by its batch's statistics. It exchanges keys between devices;
    with parts for devices it is enough to shuffle the keys within the batch. In evaluation this is
    ordinary batch normalization.
    """

    def __init__(self, num_features: int, splits: int) -> None:
        super().__init__(num_features)
        assert self.momentum is not None
        # All parts of a step together move the running statistics as far as one whole batch would.
        self.momentum = 1 - (1 - self.momentum) ** (1 / splits)
        self.splits = splits

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return super().forward(images)
        normalize = super().forward
        return torch.cat([normalize(part) for part in images.chunk(self.splits)])


def split_batch_norms(network: nn.Module, splits: int) -> None:
    """Replaces every BN of an untrained network in place; one split changes nothing."""
    if splits == 1:
        return
    for module in list(network.modules()):
        for name, child in module.named_children():
            if type(child) is nn.BatchNorm2d:
                setattr(module, name, SplitBatchNorm2d(child.num_features, splits))
