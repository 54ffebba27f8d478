"""Reductions over the rows, through which alone a loss or miner sees more of an anchor than one pair."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class OverRows:
    """Reductions of ``(a, n)`` to ``(a,)``, but for :meth:`total`.

    ``counts`` says how often each pair counts, ``(a, n)``, bool or integers. A subclass may hold a part of
    the rows on every rank, and merge what the ranks find.
    """

    are_all_held = True  # by this process

    def sum(self, values: Tensor, counts: Tensor) -> Tensor:
        """Returns the sum of the values, each as often as it counts."""
        return (values * counts).sum(dim=1)

    def count(self, counts: Tensor) -> Tensor:
        """Returns how many pairs count, int64."""
        return counts.sum(dim=1)

    def total(self, counts: Tensor) -> Tensor:
        """Returns how many pairs of all anchors count, a 0-d int64 tensor."""
        # On a CPU, the sum of a mask would make int64 of all of it.
        return counts.count_nonzero() if counts.dtype == torch.bool else counts.sum()

    def any(self, mask: Tensor) -> Tensor:
        """Returns whether any pair counts."""
        return mask.any(dim=1)

    def max(self, values: Tensor, mask: Tensor) -> Tensor:
        """Returns the largest of the values that count; -inf where none does."""
        return values.masked_fill(~mask, -torch.inf).amax(dim=1)

    def min(self, values: Tensor, mask: Tensor) -> Tensor:
        """Returns the smallest of the values that count; inf where none does."""
        return -self.max(-values, mask)

    def largest(self, values: Tensor, mask: Tensor) -> Tensor:
        """Returns the pair with the largest of the values that count, the first of equal ones, ``(a, n)``."""
        rows = values.masked_fill(~mask, -torch.inf).argmax(dim=1, keepdim=True)
        return torch.zeros_like(mask).scatter_(1, rows, mask.gather(1, rows))

    def log_sum_exp(self, values: Tensor, counts: Tensor) -> Tensor:
        """Returns log Σ exp(values), with the least finite number where none counts."""
        if counts.dtype != torch.bool:
            values, counts = values + counts.to(values.dtype).clamp_min(1).log(), counts > 0
        # Not -inf, of which the gradient is NaN where all of a row's values are.
        result: Tensor = _LogSumExp.apply(values.masked_fill(~counts, torch.finfo(values.dtype).min))
        return result

    def num_rows(self, num_held: int) -> int:
        """Returns how many rows there are where this process holds so many."""
        return num_held

    def anchors_at_once(self, num_held: int, num_pairs: int) -> int:
        """Returns of how many anchors about so many pairs are, on each process that holds as many rows."""
        return max(1, num_pairs // max(1, num_held))

    def leave_out(self, mask: Tensor, own_rows: Tensor) -> Tensor:
        """Returns the mask, in place, without the pairs of anchors and their own rows ``(a,)``."""
        return mask.scatter_(1, own_rows.unsqueeze(1), False)


class _LogSumExp(torch.autograd.Function):
    """log Σ exp(values) over rows, whose gradient is a softmax.

    On a CPU, ``exp`` of what is nearly zero takes ten to thirty times as long; that of a softmax does not.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values.softmax(dim=1))
        return values.amax(dim=1) - values.log_softmax(dim=1).amax(dim=1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_result: Tensor) -> Tensor:
        (shares,) = ctx.saved_tensors
        gradient: Tensor = of_result.unsqueeze(1) * shares
        return gradient
