"""Sums over stored rows, which moments follow from."""

from __future__ import annotations

import torch
from torch import Tensor

from .._dtypes import widest
from .._parts import rows_at_a_time

Sums = tuple[Tensor, Tensor]  # over stored rows u and over u², (d,) each, in float64


def sums_of(stored: Tensor) -> Sums:
    """Returns the sums over stored rows ``(n, d)``."""
    first = widest(stored.new_zeros(stored.shape[1]))
    second = torch.zeros_like(first)
    for part in stored.split(rows_at_a_time(stored, 8)):
        wide = widest(part)
        first += wide.sum(dim=0)
        second += (wide * wide).sum(dim=0)
    return first, second


def in_groups(slots: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """Returns places and slots of the rows of groups; on a GPU, which would have to wait for that, of all."""
    if slots.device.type != "cpu":
        return torch.arange(len(slots), device=slots.device), slots
    places = (slots < num_groups).nonzero().squeeze(1)
    return places, slots[places]


def sums_of_groups(
    stored: Tensor, places: Tensor, slots: Tensor, num_groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns counts ``(g + 1, 1)`` and sums ``(g + 1, d)`` over the stored rows at places ``(k,)``."""
    count = slots.new_zeros(num_groups + 1).index_add_(0, slots, torch.ones_like(slots)).unsqueeze(1)
    first = widest(stored.new_zeros(num_groups + 1, stored.shape[1]))
    second = torch.zeros_like(first)
    at_a_time = rows_at_a_time(stored, 8)
    for part, part_slots in zip(places.split(at_a_time), slots.split(at_a_time), strict=True):
        wide = widest(stored[part])
        first.index_add_(0, part_slots, wide)
        second.index_add_(0, part_slots, wide.square())
    return count, first, second
