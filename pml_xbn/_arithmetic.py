"""How precisely to compute, how much at a time, and how NaN is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

# So that on a CPU a part stays in the cache until all is done with it. 4 MiB of float32: threads that work on
# less wait for each other more than they work.
_NUMBERS_AT_A_TIME = {"cpu": 2**20, "gpu": 2**27}


def at_least_float32(rows: Tensor) -> Tensor:
    """Returns ``rows`` in float32, or in its own dtype where that is more precise."""
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def widest(values: Tensor) -> Tensor:
    """``values`` in float64, or in float32 on devices that know no float64."""
    return values.float() if values.device.type == "mps" else values.double()


# Since torch 2.4 it is asked for a kind of device.
_IS_ASKED_BY_DEVICE = hasattr(torch, "get_autocast_dtype")


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Returns a context in which no operation on this kind of device is cast to half precision."""
    if _IS_ASKED_BY_DEVICE and not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def all_of(*conditions: Tensor | bool | None) -> Tensor | None:
    """Returns whether all conditions hold, 0-d bool; None and True are no conditions, and None if none is."""
    found: Tensor | None = None
    for condition in conditions:
        if isinstance(condition, Tensor):
            found = condition if found is None else found & condition
    return found


def at_most(value: int | Tensor, most: int) -> int | Tensor:
    """Returns the value, or the bound where it is larger."""
    return value.clamp(max=most) if isinstance(value, Tensor) else min(value, most)


def rows_at_a_time(rows: Tensor, num_copies: int = 1) -> int:
    """Returns the number of rows ``(n, d)`` to work on at a time, if so many copies of them are made."""
    numbers = _NUMBERS_AT_A_TIME["cpu" if rows.device.type == "cpu" else "gpu"]
    return max(1, numbers // max(1, num_copies * rows.shape[1]))


def slices(num_rows: int, at_a_time: int) -> Iterator[slice]:
    """Yields the parts of so many rows."""
    for first in range(0, num_rows, at_a_time):
        yield slice(first, min(first + at_a_time, num_rows))


@torch.no_grad()
def zero_if_finite(*tensors: Tensor) -> Tensor:
    """Returns zero, a 0-d tensor, and NaN if one of the numbers is NaN or inf."""
    # Times zero before they are summed, as a sum of finite numbers may be inf.
    return torch.cat([x.reshape(-1) for x in tensors]).mul_(0).sum()


def nan_unless_zero(value: Any, zero: Tensor | float) -> Any:
    """Returns the loss times 1 + ``zero``: NaN with a gradient of NaN if that is NaN, and otherwise the loss.

    A reducer's result that is no tensor is returned unchanged.
    """
    if not isinstance(value, Tensor):
        return value
    return value * (zero.to(value) + 1 if isinstance(zero, Tensor) else zero + 1)
