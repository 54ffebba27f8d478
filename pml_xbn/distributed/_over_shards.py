"""Reductions over rows that are spread over the ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from ..pairwise._reductions import OverRows
from ._collectives import all_reduced


class OverShards(OverRows):
    """Reductions of ``(a, n)`` to ``(a,)``, of the same anchors on all ranks and of each rank's rows.

    Every rank finds what a single process would. What is computed from it on every rank has a gradient on
    every rank, and these add up, in the same way as the values do: gradients with respect to a rank's own
    pairs are the number of ranks times those of a single process.

    Args:
        rows: this rank's.
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def anchors_at_once(self, num_rows: int, device: torch.device) -> int:
        return super().anchors_at_once(self.rows.most_places, device)  # alike on all ranks

    def sum(self, values: Tensor, counts: Tensor) -> Tensor:
        result: Tensor = _Sum.apply(super().sum(values, counts))
        return result

    def count(self, counts: Tensor) -> Tensor:
        return all_reduced(super().count(counts))

    def total(self, counts: Tensor) -> Tensor:
        return all_reduced(super().total(counts))

    def max(self, values: Tensor, mask: Tensor) -> Tensor:
        values = values.detach()
        is_empty = values.shape[1] == 0
        found = values.new_full((len(values),), -torch.inf) if is_empty else super().max(values, mask)
        return all_reduced(found, dist.ReduceOp.MAX)

    def largest(self, values: Tensor, mask: Tensor) -> Tensor:
        """Of equal ones on many ranks, the first rank's, which holds the first places of the queue."""
        places = mask & (values == self.max(values, mask).unsqueeze(1))
        places &= places.cumsum(dim=1) == 1
        number = torch.where(places.any(dim=1), -dist.get_rank(), -dist.get_world_size())
        is_here = all_reduced(number, dist.ReduceOp.MAX) == number
        return places & is_here.unsqueeze(1)

    def log_sum_exp(self, values: Tensor, counts: Tensor) -> Tensor:
        least = torch.finfo(values.dtype).min
        largest = self.max(values, counts > 0).clamp_min(least)
        # What does not count may be larger, and overflow. On a CPU, exp of what is nearly zero takes long.
        total = self.sum((values - largest.unsqueeze(1)).clamp(-80, 80).exp_(), counts)
        return torch.where(total > 0, total, 1).log() + largest

    def leave_out(self, mask: Tensor, own_rows: Tensor) -> Tensor:
        held, anchors = self.rows.held(own_rows, torch.arange(len(own_rows), device=own_rows.device))
        mask[anchors, held] = False
        return mask


class _Sum(torch.autograd.Function):
    """The sum over ranks; so is the gradient, which is computed within the forward pass of the loss."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return all_reduced(values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return all_reduced(gradient)
