"""Asserts that two towers on many ranks have the loss, gradients and memories of one process."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor, distributed, nn

from pml_xbn import AXBNWrapper, TwoTowerMemory

D, M, STEPS, SIZES = 4, 17, 6, [3, 4]


def built(is_one_sided: bool, weight: float, **options: Any) -> TwoTowerMemory:
    names = ("document_memory", "query_memory")[: 1 if is_one_sided else 2]
    options |= {"batch_loss_weight": weight, "memory_dtype": torch.float64, "measurement_noise": 9.0}
    return TwoTowerMemory(
        **{n: AXBNWrapper(SupConLoss(reducer=MeanReducer()), D, M, **options) for n in names}
    )


def inputs(step: int) -> tuple[Tensor, Tensor]:
    """Of all ranks."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(2, sum(SIZES), D, generator=generator, dtype=torch.float64) + step, torch.randint(
        9, (sum(SIZES),), generator=generator
    )


def train(loss_fn: TwoTowerMemory, rank: int | None) -> list[list[Tensor]]:
    """Losses, mean gradients and rows, as one rank or as one process with the batches of all."""
    torch.manual_seed(0)
    towers = nn.ModuleList([nn.Linear(D, D).double(), nn.Linear(D, D).double()])
    history = []
    for step in range(STEPS):
        (queries, documents), labels = inputs(step)
        if rank is not None:
            queries, documents, labels = (x.split(SIZES)[rank] for x in (queries, documents, labels))
        towers.zero_grad()
        loss = loss_fn(towers[0](queries), towers[1](documents), labels)
        loss.backward()
        gradients = [p.grad.clone() for p in towers.parameters() if p.grad is not None]
        for gradient in gradients if rank is not None else ():
            distributed.all_reduce(gradient)
            gradient /= distributed.get_world_size()
        history.append([loss.detach(), *gradients, *(m.embedding_memory.clone() for m in loss_fn.children())])
    return history


def check() -> None:
    cases = [(False, 0.0), (False, 1.0), (True, 1.0)]
    alone = [train(built(*case), None) for case in cases]
    rank = distributed.get_rank()
    for case, expected in zip(cases, alone, strict=True):
        found = train(built(*case, gather_distributed=True), rank)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
        num_memories = 1 if case[0] else 2  # the last of every step's values are their rows
        found = train(built(*case, shard_distributed=True), rank)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one[:-num_memories], other[:-num_memories], rtol=1e-8, atol=1e-9)
