"""Two ranks hold the samples of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from across_ranks import assert_equal_on_ranks, mean_of_ranks
from kinds import KINDS
from pytorch_metric_learning.losses import SupConLoss
from ranks import on_ranks
from torch import Tensor, distributed, nn

D, M, STEPS = 4, 15, 10
UPDATES: dict[str, dict[str, Any]] = {
    "latest": {},
    "average": {"update": "average", "update_momentum": 0.5, "batch_loss_weight": 0.5},
}


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
        gradient = model.weight.grad
        gradient = mean_of_ranks(gradient) if len(ranks) == 1 else gradient.clone()
        rows = loss_fn.embedding_memory.clone()
        history.append([loss.detach(), gradient, rows, loss_fn.label_memory, loss_fn.id_memory])
    return history


@pytest.mark.parametrize(
    ("kind", "update", "is_masked"),
    [
        ("plain", "latest", False),
        ("plain", "average", True),
        ("xbn", "latest", True),
        ("xbn", "average", False),
        ("per class", "latest", False),
        ("per class", "average", True),
    ],
)
@on_ranks(2)
def test_two_ranks_store_and_average_the_rows_of_one_process(kind: str, update: str, is_masked: bool) -> None:
    alone, mine = (
        KINDS[kind].memory(
            SupConLoss(), D, M, memory_dtype=torch.float64, gather_distributed=is_rank, **UPDATES[update]
        )
        for is_rank in (False, True)
    )
    expected = run(alone, [0, 1], is_masked, averages=update == "average")
    found = run(mine, [distributed.get_rank()], is_masked, averages=update == "average")
    assert (alone.id_memory >= 0).sum() > 5
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
        assert_equal_on_ranks(one[2])
