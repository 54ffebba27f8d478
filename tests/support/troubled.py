"""A loss and a hook that raise what they are told to."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn


class TroubledLoss(ContrastiveLoss):
    error: BaseException | None = None
    is_late = False  # whether it does its work first
    rows: Tensor | None = None  # what it was given last besides the batch

    def forward(self, *args: Any) -> Tensor:
        loss = super().forward(*args) if self.is_late or self.error is None else None
        if self.error is not None:
            raise self.error
        self.rows = args[3]
        return loss


class TroubledHook(nn.Module):
    """Counts its calls, and returns shifted rows, or none without a shift."""

    error: BaseException | None = None

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.shift = shift

    def forward(self, rows: Tensor, *_: Tensor) -> Tensor | None:
        self.count += 1
        if self.error is not None:
            rows.fill_(7.0)
            raise self.error
        return rows + self.shift if self.shift else None
