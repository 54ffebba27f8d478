"""Cross Batch Normalization from the newest rows above all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pml_xbn.adapters import Moments, match_moments, moments


@dataclass
class RecencyMatching:
    r"""Gives the memory the moments of the batch, as XBN, by its newest rows' moments.

    .. math::
        \hat z = \frac{z - E_w[R]}{\sigma_w[R]} \, \sigma[B] + E[B], \quad
        E_w[R] = \frac{\sum_j w_j z_j}{\sum_j w_j}, \quad
        \sigma_w^2[R] = \frac{\sum_j w_j (z_j - E_w[R])^2}{\sum_j w_j - \sum_j w_j^2 / \sum_j w_j}, \quad
        w_j = 2^{-a_j / h}

    where a is how many rows have been stored since row j, and h the half-life (thesis A Study of Cross Batch
    Memory, §6.1.2, which proposes a weighted average of the memory by how recently a row was added). With
    equal weights, h = ∞, that is the unbiased variance and the map of XBN. All rows are mapped, the older
    ones by what the newer ones say.

    Args:
        half_life: h, in rows, at least 1: a row counts half as much as one stored so many rows later.
        memory: whose hook it is, which tells the ages of its rows. Without, the oldest row is the first one.

    Raises:
        ValueError: a ``half_life`` below 1.
    """

    half_life: float
    memory: Any = None

    def __post_init__(self) -> None:
        if not self.half_life >= 1:
            raise ValueError(f"half_life={self.half_life!r}: pass a number of rows, 1 or more; inf is XBN")

    def __call__(
        self, memory: Tensor, memory_labels: Tensor, batch: Tensor, batch_labels: Tensor
    ) -> Tensor | None:
        """Returns the adapted rows ``(n, d)``; None with fewer than two rows in memory or batch."""
        if min(len(memory), len(batch)) < 2:
            return None
        rows, oldest = memory.double(), 0 if self.memory is None else self.memory.queue_idx
        ages = (oldest - 1 - torch.arange(len(rows), device=rows.device)) % len(rows)
        weights = torch.exp2(-ages.double() / self.half_life)
        total = weights.sum()
        mean = weights @ rows / total
        squares = weights @ (rows - mean).square()
        weighted = Moments(mean, (squares / (total - weights.square().sum() / total)).sqrt())
        return match_moments(rows, weighted, moments(batch.double())).to(memory.dtype)
