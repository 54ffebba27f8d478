"""Moves stored rows as the samples of the batch have moved that are stored already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Kind = Literal["shift", "diagonal", "low rank"]


@dataclass
class LearnedCorrection:
    r"""Fits the move of the r returning samples by ridge regression, and gives it to all rows.

    .. math::
        \hat z = z + s + (z - m) W, \quad s = \frac{\sum_i (v_i - z_i)}{r + \lambda}

    where :math:`z_i` and :math:`v_i` are the stored and the new embedding of a sample, m is the mean of the
    memory and λ the ridge. ``"shift"`` has W = 0. ``"diagonal"`` fits a slope per dimension to what the shift
    leaves, with the penalty :math:`\lambda \sigma_j^2 w_j^2`; ``"low rank"`` a matrix, with the penalty
    :math:`\lambda \bar{\sigma^2} \lVert W \rVert^2`, of which the directions are kept that explain most of
    the move. σ² are the variances of the memory: λ counts as so many samples that have not moved.

    Args:
        memory: whose hook it is; its calls bring ``sample_ids``.
        kind: what is fitted.
        ridge: λ.
        rank: of W, of the low rank.
    """

    memory: Any
    kind: Kind = "shift"
    ridge: float = 64.0
    rank: int = 8

    def __call__(
        self, memory: Tensor, memory_labels: Tensor, batch: Tensor, batch_labels: Tensor
    ) -> Tensor | None:
        """Returns the corrected rows ``(n, d)``; None where no sample returns."""
        in_memory, in_batch = self.memory.returning_samples
        if len(in_memory) == 0:
            return None
        rows = memory.double()
        moves = batch[in_batch].double() - rows[in_memory]
        shift = moves.sum(dim=0) / (len(moves) + self.ridge)
        if self.kind == "shift":
            return (rows + shift).to(memory.dtype)
        centred, variances = rows - rows.mean(dim=0), rows.var(dim=0, unbiased=False)
        inputs, residuals = centred[in_memory], moves - shift
        if self.kind == "diagonal":
            squares = inputs.square().sum(dim=0) + self.ridge * variances
            slopes = (inputs * residuals).sum(dim=0) / squares.clamp(1e-30)
            return (rows + shift + centred * slopes).to(memory.dtype)
        penalty = self.ridge * variances.mean().clamp(1e-30) * torch.eye(len(inputs), dtype=inputs.dtype)
        weights = inputs.T @ torch.linalg.solve(inputs @ inputs.T + penalty.to(inputs), residuals)
        directions = torch.linalg.svd(inputs @ weights, full_matrices=False).Vh[: self.rank]
        moved: Tensor = centred @ weights @ directions.T @ directions
        return (rows + shift + moved).to(memory.dtype)
