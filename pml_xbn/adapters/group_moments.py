"""Moments of many groups of rows at once, without a loop over groups."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .moments import Moments, at_least_float32


class GroupSlots(NamedTuple):
    """Which of the batch's groups every row belongs to.

    A group's slot is a number in [0, b) with b the size of the batch, which needs no knowledge of how
    many groups there are and so no wait for the GPU. Slot b holds the rows of all other groups.
    """

    memory: Tensor
    batch: Tensor


def group_slots(memory_groups: Tensor, batch_groups: Tensor) -> GroupSlots:
    """Slots of ``memory_groups`` ``(n,)`` and ``batch_groups`` ``(b,)``, int64.

    Example:
        >>> group_slots(torch.tensor([7, 4, 9]), torch.tensor([9, 7, 7]))
        GroupSlots(memory=tensor([0, 3, 2]), batch=tensor([2, 0, 0]))
    """
    in_order = batch_groups.sort().values
    batch_slots = torch.searchsorted(in_order, batch_groups)
    nearest = torch.searchsorted(in_order, memory_groups).clamp(max=len(in_order) - 1)
    is_in_batch = in_order[nearest] == memory_groups
    return GroupSlots(torch.where(is_in_batch, nearest, len(in_order)), batch_slots)


def group_moments(rows: Tensor, slots: Tensor, num_slots: int) -> tuple[Moments, Tensor]:
    """Moments of the rows of every slot, ``(num_slots, d)`` each, and the row counts ``(num_slots,)``.

    A slot with fewer than two rows has no spread; its standard deviation reads 0. Sums run in float64,
    because a group may hold most of a large memory.
    """
    rows = at_least_float32(rows)
    wide = rows.double()
    counts = torch.zeros(num_slots, dtype=torch.int64, device=rows.device)
    counts.index_add_(0, slots, torch.ones_like(slots))
    sums = wide.new_zeros(num_slots, rows.shape[1])
    mean = sums.index_add(0, slots, wide) / counts.clamp(min=1).unsqueeze(1)
    squares = sums.index_add(0, slots, (wide - mean[slots]).square())
    std = (squares / (counts - 1).clamp(min=1).unsqueeze(1)).sqrt()
    return Moments(mean.to(rows.dtype), std.to(rows.dtype)), counts
