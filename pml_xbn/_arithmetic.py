"""How precisely to compute, and how much at a time."""

from __future__ import annotations

from collections.abc import Iterator

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


def rows_at_a_time(rows: Tensor, num_copies: int = 1) -> int:
    """Returns how many of the rows ``(n, d)`` are a part, of which so many copies are made."""
    numbers = _NUMBERS_AT_A_TIME["cpu" if rows.device.type == "cpu" else "gpu"]
    return max(1, numbers // max(1, num_copies * rows.shape[1]))


def slices(num_rows: int, at_a_time: int) -> Iterator[slice]:
    """Yields the parts of so many rows."""
    for first in range(0, num_rows, at_a_time):
        yield slice(first, min(first + at_a_time, num_rows))


def can_read(values: Tensor) -> bool:
    """Returns whether numbers of a tensor can be read without waiting: on a CPU, and not while it is traced.

    Where they cannot, a step computes with 0-d tensors instead, so that ``torch.compile`` and ``make_fx`` take
    it whole, and a GPU does not wait.
    """
    return values.device.type == "cpu" and not is_traced()


def is_traced() -> bool:
    """Returns whether operations are recorded: by ``torch.compile``, ``make_fx`` or a CUDA graph."""
    if torch.compiler.is_compiling():
        return True
    return _proxy_mode() is not None or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _proxy_mode() -> object:
    """The mode of ``make_fx``; None where it does not trace."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
