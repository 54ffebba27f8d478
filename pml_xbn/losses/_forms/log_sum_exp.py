"""The logarithm of a sum of exponentials over the pairs that count."""

from __future__ import annotations

import torch
from torch import Tensor


def log_sum_exp(exponents: Tensor, counts: Tensor, *, add_one: bool = False) -> Tensor:
    """Over every row of ``(a, n)`` as ``(a,)``; 0 of rows in which nothing counts.

    Args:
        counts: how often each exponent is in the sum, ``(a, n)``, bool or integers.
        add_one: adds 1 to every sum.
    """
    keep = counts > 0
    if counts.dtype != torch.bool:
        exponents = exponents + counts.clamp_min(1).log()
    # Not infinity, which has no gradient in a row that holds nothing else.
    totals = exponents.masked_fill(~keep, torch.finfo(exponents.dtype).min).logsumexp(dim=1)
    if add_one:
        return torch.logaddexp(totals, torch.zeros_like(totals))
    return totals.masked_fill(~keep.any(dim=1), 0)
