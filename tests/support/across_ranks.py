"""What ranks of a test tell each other, to compare what they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

T = TypeVar("T")
Group = distributed.ProcessGroup


def mean_of_ranks(gradient: Tensor, group: Group | None = None) -> Tensor:
    """Returns the gradient that DistributedDataParallel would leave."""
    total = gradient.clone()
    distributed.all_reduce(total, group=group)
    return total / distributed.get_world_size(group)


def of_all_ranks(value: T, group: Group | None = None) -> list[T]:
    """Returns the values of all ranks, in rank order; tensors may have other shapes on other ranks."""
    values: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(values, value, group=group)
    return values


def from_first_rank(compute: Callable[[], T], group: Group | None = None) -> T:
    """Returns to all ranks what the first one computes, such as what one process would have."""
    is_first = distributed.get_rank(group) == 0
    (value, *_) = of_all_ranks(compute() if is_first else None, group)
    assert value is not None
    return value


def assert_equal_on_ranks(values: Tensor) -> None:
    """All ranks have the same values, bit for bit."""
    first, *others = of_all_ranks(values)
    assert all(torch.equal(first, other) for other in others), (first, *others)
