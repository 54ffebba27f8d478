"""Rows a part at a time, so that on a CPU a part stays in the cache until all is done with it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def parts_of(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts of tensors that have as many rows each."""
    return zip(*(tensor.split(rows_at_a_time(tensors[0])) for tensor in tensors), strict=True)


def buffer_for_part(rows: Tensor) -> Tensor:
    """Room for a part, to be used for one after the other: fresh memory for each costs page faults."""
    return torch.empty_like(rows[: rows_at_a_time(rows)])


def rows_at_a_time(rows: Tensor) -> int:
    """How many rows are a part."""
    return 1024 if rows.device.type == "cpu" else 2**18
