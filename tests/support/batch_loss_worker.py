"""Asserts that BatchLoss on many ranks has loss and gradient of a single process with the whole batch."""

from __future__ import annotations

import torch
from pytorch_metric_learning.losses import ContrastiveLoss, ProxyAnchorLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import Tensor, distributed, nn

from pml_xbn.losses import BatchLoss

SIZES = {2: [3, 5], 3: [3, 5, 0]}
LOSSES = {
    "pairs": lambda **options: BatchLoss(
        ContrastiveLoss(), PairMarginMiner(pos_margin=0.2, neg_margin=0.8), **options
    ),
    "proxies": lambda **options: BatchLoss(ProxyAnchorLoss(num_classes=4, embedding_size=3), **options),
}


def gradients(name: str, inputs: Tensor, labels: Tensor, is_rank: bool) -> list[Tensor]:
    """The loss, and the gradients of the model and of the loss's own parameters."""
    torch.manual_seed(1)
    model = nn.Linear(5, 3).double()
    loss_fn = LOSSES[name](gather_distributed=is_rank).double()
    loss = loss_fn(model(inputs), labels)
    loss.backward()
    gradients = [p.grad for p in (*model.parameters(), *loss_fn.parameters()) if p.grad is not None]
    for gradient in gradients if is_rank else ():  # the mean that DistributedDataParallel takes
        distributed.all_reduce(gradient)
        gradient /= distributed.get_world_size()
    return [loss.detach(), *gradients]


def check() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 5, dtype=torch.float64, generator=generator)
    labels = torch.tensor([0, 0, 1, 1, 0, 2, 2, 3])
    alone = {name: gradients(name, inputs, labels, is_rank=False) for name in LOSSES}
    rank, size = distributed.get_rank(), distributed.get_world_size()
    for name in LOSSES:
        sizes = SIZES[size]
        mine = gradients(name, inputs.split(sizes)[rank], labels.split(sizes)[rank], is_rank=True)
        assert len(mine) == len(alone[name]) == (4 if name == "proxies" else 3)
        for one, other in zip(mine, alone[name], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        # Nobody waits for the others.
        LOSSES["pairs"](gather_distributed=True)(inputs[: rank + 2], labels[: rank + 2])
