from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from across_ranks import assert_equal_on_ranks, of_all_ranks
from pytorch_metric_learning.losses import ContrastiveLoss, TripletMarginLoss
from pytorch_metric_learning.miners import DistanceWeightedMiner, UniformHistogramMiner
from ranks import on_ranks
from torch import distributed, nn

from pml_xbn import XBNWrapper
from pml_xbn.losses import BatchLoss

D = 8
DRAWING: dict[str, Callable[[], nn.Module]] = {
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


@pytest.mark.parametrize("name", DRAWING)
@on_ranks(2)
def test_ranks_draw_alike_where_all_see_all_anchors(name: str) -> None:
    torch.manual_seed(distributed.get_rank())  # as it is in training, where ranks augment images
    loss_fn = DRAWING[name]()
    values = []
    for _ in range(3):
        values.append(loss_fn(torch.randn(6, D, requires_grad=True), torch.arange(6) % 3).detach())
    assert_equal_on_ranks(torch.stack(values))
    assert min(values) > 0
    # What a rank draws for itself afterwards, it does not share.
    first, *others = of_all_ranks(torch.rand(3))
    assert not any(torch.equal(first, other) for other in others)
