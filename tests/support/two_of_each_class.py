"""Batches of two rows of each class, and rows of a memory, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

D, CLASSES = 5, 16
LABELS = torch.arange(CLASSES).repeat_interleave(2)


def batch_of(seed: int, centre: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(CLASSES, D, generator=generator, dtype=torch.float64) + centre
    return means[LABELS] + 0.1 * torch.randn(2 * CLASSES, D, generator=generator, dtype=torch.float64)


def memory_of(seed: int) -> Tensor:
    return torch.randn(200, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
