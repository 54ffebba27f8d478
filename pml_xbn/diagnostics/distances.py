"""Distances and group means, which several diagnostics use."""

from __future__ import annotations

import torch
from torch import Tensor

from .._arithmetic import at_least_float32


def distance_per_row(rows: Tensor, others: Tensor) -> Tensor:
    """Returns the Euclidean distance from every row ``(n, d)`` to the same row of the others, ``(n,)``."""
    distances: Tensor = (at_least_float32(rows) - at_least_float32(others)).norm(dim=1)
    return distances


def mean_and_maximum(values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns mean and maximum of values ``(n,)``; both are 0 where there are none."""
    if len(values) == 0:
        return values.new_zeros(()), values.new_zeros(())
    return values.mean(), values.max()


def group_means(rows: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the mean row of every group.

    Args:
        rows: ``(n, d)``, of at least float32.
        groups: ``(n,)`` integers.

    Returns:
        The means ``(g, d)`` in ascending order of group, the position of every row's mean ``(n,)``, and
        the number of rows of each ``(g,)``.
    """
    _, position, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    sums = rows.new_zeros(len(counts), rows.shape[1]).index_add_(0, position, rows)
    return sums / counts.unsqueeze(1), position, counts
