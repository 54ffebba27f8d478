"""A loss of numbers that are not finite is NaN, whatever its masks and its miner leave out."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def zero_if_finite(*tensors: Tensor) -> Tensor:
    """Returns zero, a 0-d tensor, and NaN if one of the numbers is NaN or inf."""
    first, *others = (x.detach().mul(0).sum() for x in tensors)
    for other in others:
        first += other
    return first


def nan_unless_zero(value: Any, zero: Tensor | float) -> Any:
    """Returns a loss as it is, and where ``zero`` is NaN one that is NaN and whose gradient is.

    A result of a reducer that is no tensor is returned as it is.
    """
    if not isinstance(value, Tensor):
        return value
    return value * (zero.to(value) + 1 if isinstance(zero, Tensor) else zero + 1)
