"""The memories that are checked, and the batches that they get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, nn

from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper

DIM, NUM_ROWS, BATCH_SIZE, NUM_CLASSES = 32, 160, 32, 12
SUPERCLASSES = [label % 4 for label in range(NUM_CLASSES)]
MEASUREMENT_NOISE = 32.0  # of AXBN: the paper's leaves a gain of nearly 1, by which it is XBN

KINDS: dict[str, Callable[..., Any]] = {
    "XBN": XBNWrapper,
    "AXBN": lambda *args, **options: AXBNWrapper(
        *args, measurement_noise=MEASUREMENT_NOISE, gain_update_interval=10, **options
    ),
    "PC-XBN": PerClassXBN,
    "SC-XBN": lambda *args, **options: SuperClassXBN(*args, superclasses=SUPERCLASSES, **options),
}


def build(kind: str, loss: nn.Module | None = None, miner: Any = None, **options: Any) -> Any:
    """Returns an empty memory on the CPU; its loss is SupCon by default."""
    return KINDS[kind](SupConLoss() if loss is None else loss, DIM, NUM_ROWS, miner, **options)


class Batch(NamedTuple):
    """Embeddings (b, d) in float32 and labels (b,)."""

    embeddings: Tensor
    labels: Tensor

    def on(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Batch:
        """Returns a copy on a device, whose embeddings are a leaf that takes gradients."""
        moved = self.embeddings.detach().to(device, dtype, copy=True)
        return Batch(moved.requires_grad_(), self.labels.to(device))


def batches(steps: int, seed: int = 0) -> Iterator[Batch]:
    """Yields batches on the CPU of classes that lie apart, whose mean and spread drift.

    Classes take turns: of a class with few rows in memory, rounding may be as large as the spread.
    """
    draw = torch.Generator().manual_seed(seed)
    classes = torch.randn(NUM_CLASSES, DIM, generator=draw)
    drift = 2 * torch.randn(DIM, generator=draw)
    for step in range(steps):
        per_batch = BATCH_SIZE // 4
        labels = ((step * per_batch + torch.arange(per_batch)) % NUM_CLASSES).repeat_interleave(4)
        noise = torch.randn(BATCH_SIZE, DIM, generator=draw)
        spread = 1 + 0.5 * torch.sin(torch.tensor(step / 20))
        yield Batch(
            spread * (classes[labels] + 0.7 * noise) + drift * torch.sin(torch.tensor(step / 25)), labels
        )


def step(memory: Any, batch: Batch, *args: Any, **options: Any) -> list[Tensor]:
    """Returns the loss of a batch, and its gradient."""
    loss = memory(*batch, *args, **options)
    (gradient,) = torch.autograd.grad(loss, batch.embeddings)
    return [loss.detach(), gradient]


def rows_of(memory: Any) -> Tensor:
    """Returns the rows that a memory holds, (n, d)."""
    return memory.embedding_memory[: memory.num_rows]
