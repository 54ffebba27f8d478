"""Asserts that the gradient of a loss without memory is that of a single process with the whole batch."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from shared.process_group import leave_process_group
from training.batch_loss import BatchLoss

LOSSES = {
    "pairs": lambda: BatchLoss(SupConLoss(), PairMarginMiner(pos_margin=0.2, neg_margin=0.8)),
    "proxies": lambda: BatchLoss(ProxyAnchorLoss(num_classes=4, embedding_size=3), None),
}


def gradients(name: str, inputs: torch.Tensor, labels: torch.Tensor, ranks: bool) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = nn.Linear(5, 3).double()
    loss_fn = LOSSES[name]().double()
    modules: list[nn.Module] = [model, loss_fn]
    if ranks:
        modules = [DistributedDataParallel(m) if list(m.parameters()) else m for m in modules]
    modules[1](modules[0](inputs), labels).backward()
    return [p.grad for p in (*model.parameters(), *loss_fn.parameters()) if p.grad is not None]


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 5, dtype=torch.float64, generator=generator)
    labels = torch.tensor([0, 0, 1, 1, 0, 2, 2, 3])
    alone = {name: gradients(name, inputs, labels, ranks=False) for name in LOSSES}
    distributed.init_process_group("gloo", timeout=timedelta(minutes=1))
    rank, size = distributed.get_rank(), distributed.get_world_size()
    for name in LOSSES:
        mine = gradients(name, inputs.chunk(size)[rank], labels.chunk(size)[rank], ranks=True)
        assert len(mine) == len(alone[name]) == (3 if name == "proxies" else 2)
        for one, other in zip(mine, alone[name], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    if rank == 0:
        print("gradients agree")
    leave_process_group()
