"""The logarithm of a sum of exponentials over the pairs that count."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def log_sum_exp(exponents: Tensor, counts: Tensor, *, add_one: bool = False) -> Tensor:
    """Over every row of ``(a, n)`` as ``(a,)``; 0 of rows in which nothing counts.

    Args:
        counts: how often each exponent is in the sum, ``(a, n)``, bool or integers.
        add_one: adds 1 to every sum.
    """
    totals = log_sum_exp_or_least(exponents, counts)
    return log_one_plus_exp(totals) if add_one else or_zero(totals)


def log_sum_exp_or_least(exponents: Tensor, counts: Tensor) -> Tensor:
    """The same, but the least number there is of rows in which nothing counts."""
    totals: Tensor = _LogSumExp.apply(exponents, counts)
    return totals


def or_zero(totals: Tensor) -> Tensor:
    """0 for the least number there is."""
    return totals.masked_fill(totals == _least(totals), 0)


def log_one_plus_exp(exponents: Tensor) -> Tensor:
    """``log(1 + exp(x))`` to the last digit; PyTorch's default takes x for it from 20 on."""
    return torch.nn.functional.softplus(exponents, threshold=40)


def _least(like: Tensor) -> float:
    return torch.finfo(like.dtype).min


class _LogSumExp(torch.autograd.Function):
    """One matrix is made, of no number so small that a CPU would take many times as long for it."""

    @staticmethod
    def forward(ctx: Any, exponents: Tensor, counts: Tensor) -> Tensor:
        powers = torch.where(counts.bool(), exponents, _least(exponents))
        largest = powers.amax(dim=1, keepdim=True)
        lowest = 4 * math.log(torch.finfo(exponents.dtype).eps)  # nothing beside the exp(0) of the largest
        powers.sub_(largest).clamp_min_(lowest).exp_().mul_(counts)
        sums = powers.sum(dim=1, keepdim=True)
        has_any = largest > _least(exponents)
        totals = torch.where(has_any, largest + sums.log(), largest).squeeze(1)
        ctx.save_for_backward(exponents, counts, totals, powers, sums.masked_fill_(~has_any, torch.inf))
        return totals

    @staticmethod
    def backward(ctx: Any, of_totals: Tensor) -> tuple[Tensor, None]:
        exponents, counts, totals, powers, sums = ctx.saved_tensors
        of_totals = of_totals.unsqueeze(1)
        if not torch.is_grad_enabled():
            return powers * (of_totals / sums), None
        shares = torch.where(counts.bool(), exponents - totals.unsqueeze(1), 0).exp() * counts
        return of_totals * shares, None
