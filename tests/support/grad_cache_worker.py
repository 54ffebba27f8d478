"""Asserts that ranks which embed their part of a batch in parts train as one process with whole batches."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, distributed, nn

from pml_xbn import XBNWrapper
from pml_xbn.training import GradCache

_GENERATOR = torch.Generator().manual_seed(0)
BATCHES = torch.randn(3, 16, 5, dtype=torch.float64, generator=_GENERATOR)
LABELS = torch.randint(4, (3, 16), generator=_GENERATOR)


def plain_network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)).double()


def train(model: nn.Module, loss_fn: nn.Module, own: slice = slice(None)) -> list[Tensor]:
    """Takes three steps with a part of every batch, and returns the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for images, labels in zip(BATCHES, LABELS, strict=True):
        loss = loss_fn(model(images[own]), labels[own])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def check() -> None:
    def memory(is_shared: bool) -> XBNWrapper:
        loss = SupConLoss(temperature=0.1)
        return XBNWrapper(loss, 3, 40, memory_dtype=torch.float64, gather_distributed=is_shared)

    whole, cached = plain_network(), GradCache(plain_network(), 3)
    own = slice(0, 7) if distributed.get_rank() == 0 else slice(7, 16)
    losses = train(whole, memory(is_shared=False))
    on_ranks = train(nn.parallel.DistributedDataParallel(cached), memory(is_shared=True), own)
    torch.testing.assert_close(on_ranks, losses, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        dict(cached.module.state_dict()), dict(whole.state_dict()), rtol=1e-9, atol=1e-12
    )
