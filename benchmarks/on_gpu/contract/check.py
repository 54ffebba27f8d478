"""A check, and how far off what it found may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Outcome(NamedTuple):
    """The largest error that a check found, the largest one with which it passes, and what is to be said."""

    error: float
    tolerance: float
    message: str = ""


class Check(NamedTuple):
    """A row of the table before it is measured.

    Attributes:
        name: what is checked.
        case: of which loss, memory or option.
        dtype: of stored rows, or of autocast.
        run: takes the check on a device.
    """

    name: str
    case: str
    dtype: str
    run: Callable[[torch.device], Outcome]


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Returns the largest difference of any pair of tensors, over the largest number that is expected of it.

    It is infinite where a shape differs, or where one has a NaN and the other has none.
    """
    errors = [0.0]
    for one, other in zip(found, expected, strict=True):
        one, other = (x.detach().to("cpu", torch.float64) for x in (one, other))
        if one.shape != other.shape or not torch.equal(one.isfinite(), other.isfinite()):
            return float("inf")
        if one.numel():
            difference = (one - other).nan_to_num(0, 0, 0).abs().max()
            largest = other.nan_to_num(0, 0, 0).abs().max()
            errors.append(float(difference / largest) if largest > 0 else float(difference))
    return max(errors)


def name_of(dtype: torch.dtype) -> str:
    """Returns the name of a dtype, such as float32."""
    return str(dtype).removeprefix("torch.")
