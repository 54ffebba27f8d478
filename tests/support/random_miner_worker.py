"""Asserts that what is drawn for the anchors of all ranks is drawn alike on all of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pytorch_metric_learning.losses import ContrastiveLoss, TripletMarginLoss
from pytorch_metric_learning.miners import DistanceWeightedMiner, UniformHistogramMiner
from torch import Tensor, distributed, nn

from pml_xbn import XBNWrapper
from pml_xbn.losses import BatchLoss

D = 8
MAKE: dict[str, Callable[[], nn.Module]] = {
    "histogram": lambda: XBNWrapper(
        ContrastiveLoss(), D, 40, UniformHistogramMiner(), gather_distributed=True
    ),
    "distance": lambda: XBNWrapper(
        TripletMarginLoss(margin=0.5), D, 40, DistanceWeightedMiner(), gather_distributed=True
    ),
    "triplets": lambda: BatchLoss(
        TripletMarginLoss(margin=0.5, triplets_per_anchor=2), gather_distributed=True
    ),
}


def of_all(values: Tensor) -> list[Tensor]:
    gathered = [torch.empty_like(values) for _ in range(distributed.get_world_size())]
    distributed.all_gather(gathered, values)
    return gathered


def check() -> None:
    for make in MAKE.values():
        torch.manual_seed(distributed.get_rank())  # as it is in training, where ranks augment images
        loss_fn = make()
        values = []
        for _ in range(3):
            values.append(loss_fn(torch.randn(6, D, requires_grad=True), torch.arange(6) % 3).detach())
        first, *others = of_all(torch.stack(values))
        assert all(torch.equal(first, other) for other in others)
        assert first.min() > 0
        # What a rank draws for itself afterwards, it does not share.
        first, *others = of_all(torch.rand(3))
        assert not any(torch.equal(first, other) for other in others)
