"""Reductions over the rows of an anchor, and of all terms of a loss, as PML's reducers do it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning import reducers
from torch import Tensor

# Of which the result follows from a sum and a count.
REDUCERS = (
    reducers.AvgNonZeroReducer,
    reducers.DivisorReducer,
    reducers.MeanReducer,
    reducers.SumReducer,
    reducers.ThresholdReducer,
)
# Several matrices of that size are to fit into a CPU's cache.
_PAIRS_AT_ONCE = {"cpu": 2**19, "gpu": 2**24}


class OverRows:
    """Reductions of ``(a, n)`` to ``(a,)``, through which alone a loss or miner sees more than one pair.

    ``counts`` says how often each pair counts, ``(a, n)``, bool or integers. A subclass may hold a part of
    the rows on every rank, and merge what the ranks find.
    """

    def anchors_at_once(self, num_rows: int, device: torch.device) -> int:
        """Returns for how many anchors a loss is computed at once."""
        return max(1, _PAIRS_AT_ONCE["cpu" if device.type == "cpu" else "gpu"] // max(1, num_rows))

    def sum(self, values: Tensor, counts: Tensor) -> Tensor:
        """Returns the sum of the values, each as often as it counts."""
        # Times a mask takes a CPU six times as long as times numbers, which its bytes become in no time.
        numbers = counts.view(torch.uint8) if counts.dtype == torch.bool else counts
        return (values * numbers.to(values.dtype)).sum(dim=1)

    def count(self, counts: Tensor) -> Tensor:
        """Returns how many pairs count, int64."""
        return counts.sum(dim=1)

    def total(self, counts: Tensor) -> Tensor:
        """Returns how many pairs of all anchors count, a 0-d int64 tensor."""
        # On a CPU, the sum of a mask would make int64 of all of it.
        return counts.count_nonzero() if counts.dtype == torch.bool else counts.sum()

    def max(self, values: Tensor, mask: Tensor) -> Tensor:
        """Returns the largest of the values that count, without gradient; -inf where none does."""
        return torch.where(mask, values.detach(), -torch.inf).amax(dim=1)

    def largest(self, values: Tensor, mask: Tensor) -> Tensor:
        """Returns the pair with the largest of the values that count, the first of equal ones, ``(a, n)``."""
        rows = torch.where(mask, values, -torch.inf).argmax(dim=1, keepdim=True)
        return torch.zeros_like(mask).scatter_(1, rows, mask.gather(1, rows))

    def log_sum_exp(self, values: Tensor, counts: Tensor) -> Tensor:
        """Returns log Σ exp(values), the smallest finite number where none counts."""
        if counts.dtype != torch.bool:
            values, counts = values + counts.to(values.dtype).clamp_min(1).log(), counts > 0
        result: Tensor = _LogSumExp.apply(values, counts)
        return result

    def leave_out(self, mask: Tensor, own_rows: Tensor) -> Tensor:
        """Returns the mask, in place, without the pairs of anchors and their own rows ``(a,)``."""
        return mask.scatter_(1, own_rows.unsqueeze(1), False)


class _LogSumExp(torch.autograd.Function):
    """log Σ exp(values) over rows, whose gradient is a softmax."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: Tensor) -> Tensor:
        limits = torch.finfo(values.dtype)
        values = torch.where(mask, values, limits.min)
        largest = values.amax(dim=1, keepdim=True)
        # Numbers that are nearly zero would take a CPU ten to thirty times as long.
        shares = (values - largest).clamp_(min=math.log(limits.tiny) / 2).exp_()
        total = shares.sum(dim=1, keepdim=True)
        ctx.save_for_backward(shares.div_(total))
        return (largest + total.log_()).squeeze(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (shares,) = ctx.saved_tensors  # where none counts all do, but the result is not used
        return gradient.unsqueeze(1) * shares, None


class Elements(NamedTuple):
    """The terms that a loss hands its reducer."""

    # Of anchors (a,), of pairs (a, n), or of listed ones (k,); without dimensions a result, whatever reduces.
    values: Tensor
    counts: Tensor | None = None  # how often each counts, bool or integers; None: once
    divisor: Tensor | None = None  # that of PML's DivisorReducer

    def totals(self, reducer: Any, over_rows: OverRows) -> tuple[Tensor, Tensor]:
        """Returns what the reducer sums, with a number per anchor or listed one, and what divides the sum."""
        values, counts = self.values, self.counts
        for name, is_beyond in (("low", torch.gt), ("high", torch.lt)):
            bound = getattr(reducer, name, None)
            if bound is not None and values.ndim > 0:
                is_within = is_beyond(values, bound)
                counts = is_within if counts is None else counts * is_within
        if counts is None:
            return values, torch.full((), values.numel(), device=values.device)  # torch.tensor would wait
        is_mask = counts.dtype == torch.bool
        # What does not count may be NaN.
        values = values.masked_fill(~counts if is_mask else counts == 0, 0)
        if values.ndim == 2:
            return over_rows.sum(values, counts), over_rows.total(counts)
        return values if is_mask else values * counts, counts.sum()
