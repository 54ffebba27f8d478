"""Every kind of memory, small, and a run of steps that is the same every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from kinds import KINDS, Kind
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, nn

from pml_xbn.losses import AdaptiveCrossBatchMemory

D, M = 4, 14
# Thrice the batch is more than M: the queue wraps round in the third step.
BATCH_SIZE = 5

Make = Callable[..., AdaptiveCrossBatchMemory]


def small(kind: Kind) -> Make:
    """Of one kind of memory; what it makes takes a loss and the options of all kinds."""

    def make(loss: nn.Module | None = None, **options: Any) -> AdaptiveCrossBatchMemory:
        return kind.memory(SupConLoss() if loss is None else loss, D, M, **options)

    return make


EVERY: dict[str, Make] = {name: small(kind) for name, kind in KINDS.items()}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def batch(number: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Embeddings and labels of a step."""
    generator = torch.Generator().manual_seed(number)
    embeddings = torch.randn(BATCH_SIZE, D, generator=generator) * (1 + 0.1 * number) + number
    return embeddings.to(dtype).requires_grad_(), torch.randint(0, 3, (BATCH_SIZE,), generator=generator)


def step(memory: nn.Module, number: int) -> list[Tensor]:
    """Loss and gradient of a step."""
    embeddings, labels = batch(number)
    loss = memory(embeddings, labels)
    loss.backward()
    assert embeddings.grad is not None
    return [loss.detach(), embeddings.grad]


def state(memory: nn.Module) -> dict[str, Tensor]:
    """A copy of everything that a memory holds."""
    return {name: value.clone() for name, value in memory.state_dict().items()}


def are_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether two states are, bit for bit."""
    return first.keys() == second.keys() and all(
        value.dtype == second[name].dtype and torch.equal(value, second[name])
        for name, value in first.items()
    )


def assert_same_runs(first: nn.Module, second: nn.Module, numbers: range = range(50, 55)) -> None:
    """That two memories go on alike, bit for bit."""
    for number in numbers:
        for a, b in zip(step(first, number), step(second, number), strict=True):
            assert torch.equal(a, b)
        assert are_equal(state(first), state(second))
