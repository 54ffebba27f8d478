"""Rows that are a tensor."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# 16 MiB of float32 are near a CPU between the norms and the products. In smaller parts, which are no faster,
# threads wait for each other most of the time where others want the CPU, too. A GPU wants large ones.
_NUMBERS_AT_ONCE = {"cpu": 2**22, "gpu": 2**26}


class TensorRows:
    """The rows of a tensor ``(n, d)`` that nobody writes to while a graph may need them."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, dtype: torch.dtype) -> Tensor:
        return self._rows.to(dtype)

    def at(self, places: Tensor, dtype: torch.dtype) -> Tensor:
        return self._rows[places].to(dtype)

    def column(self, dimension: int, dtype: torch.dtype) -> Tensor:
        return self._rows[:, dimension].to(dtype)

    def parts(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        num_rows, size = self._rows.shape
        at_once = max(1, _NUMBERS_AT_ONCE["cpu" if self._rows.device.type == "cpu" else "gpu"] // size)
        for first in range(0, num_rows, at_once):
            places = slice(first, min(first + at_once, num_rows))
            yield places, self._rows[places].to(dtype)

    def weighted_sum(self, weights: Tensor, divisors: Tensor) -> Tensor:
        return (weights / divisors) @ self._rows.to(weights.dtype)
