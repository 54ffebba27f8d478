"""A loss that raises when told to."""

from __future__ import annotations

from typing import Any

from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor


class TroubleError(Exception):
    pass


class TroubledLoss(ContrastiveLoss):
    strikes = False
    rows: Tensor | None = None  # what it was given last besides the batch

    def forward(self, *args: Any) -> Tensor:
        if self.strikes:
            raise TroubleError
        self.rows = args[3]
        return super().forward(*args)
