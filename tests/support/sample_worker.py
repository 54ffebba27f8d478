"""Asserts that memories of samples on many ranks are those of a single process with the batches of all."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from kinds import KINDS
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, distributed, nn

D, M, STEPS = 4, 15, 10
MEMORIES = ("plain", "xbn", "per class")
UPDATES: list[dict[str, Any]] = [
    {},
    {"update": "average", "update_momentum": 0.5, "batch_loss_weight": 0.5},
]


def batch_of(rank: int, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Inputs, labels and samples; now and then a rank brings nothing, or no samples are known."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    size = (rank + step) % 4 + (rank == 0)
    inputs = torch.randn(size, D, generator=generator, dtype=torch.float64)
    ids = torch.randint(-1, 18, (size,), generator=generator)
    return inputs + step, ids % 3, None if step % 5 == 2 else ids


def run(loss_fn: nn.Module, ranks: list[int], is_masked: bool, averages: bool) -> list[list[Tensor]]:
    """Loss, mean gradient and memory of every step."""
    torch.manual_seed(0)
    model = nn.Linear(D, D, bias=False).double()
    history = []
    for step in range(STEPS):
        inputs, labels, of_ranks = zip(*(batch_of(rank, step) for rank in ranks), strict=True)
        ids = [
            torch.full_like(y, -1) if x is None and (averages or len(ranks) > 1) else x
            for x, y in zip(of_ranks, labels, strict=True)
        ]
        sample_ids = None if ids[0] is None else torch.cat(ids)
        arguments = model(torch.cat(inputs)), torch.cat(labels)
        mask = torch.cat([torch.arange(len(x)) % 2 == 1 for x in inputs]) if is_masked else None
        if step == 5:
            with torch.no_grad():
                loss_fn.fill_memory(*arguments, sample_ids)
            continue
        model.zero_grad()
        loss = loss_fn(*arguments, None, mask, sample_ids=sample_ids)
        loss.backward()
        gradient = model.weight.grad.clone()
        if distributed.is_initialized() and len(ranks) == 1:
            distributed.all_reduce(gradient)
            gradient /= distributed.get_world_size()
        rows = loss_fn.embedding_memory.clone()
        history.append([loss.detach(), gradient, rows, loss_fn.label_memory, loss_fn.id_memory])
    return history


def check() -> None:
    rank, size = distributed.get_rank(), distributed.get_world_size()
    for number, (kind, options) in enumerate(itertools.product(MEMORIES, UPDATES)):
        is_masked = (number + number // len(UPDATES)) % 2 == 1
        alone, mine = (
            KINDS[kind].memory(
                SupConLoss(), D, M, memory_dtype=torch.float64, gather_distributed=is_rank, **options
            )
            for is_rank in (False, True)
        )
        averages = options.get("update_momentum", 0) > 0
        expected = run(alone, list(range(size)), is_masked, averages)
        found = run(mine, [rank], is_masked, averages)
        assert (alone.id_memory >= 0).sum() > 5
        for one, other in zip(found, expected, strict=True):
            for a, b in zip(one, other, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
            rows = one[2].clone()
            distributed.broadcast(rows, 0)
            assert torch.equal(rows, one[2])  # bit for bit
