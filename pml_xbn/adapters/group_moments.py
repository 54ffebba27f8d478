"""Moments of many groups of rows at once, and a map of its own for each, without a loop over groups."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .moments import Affine, Moments, at_least_float32, widest
from .parts import buffer_for_part, parts_of
from .running_moments import Sums


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


def group_sums(rows: Tensor, slots: Tensor, num_slots: int) -> Sums:
    """Sums of the rows of every slot, in one pass over the rows.

    Args:
        rows: ``(n, d)``.
        slots: of the rows, ``(n,)``.
        num_slots: g, larger than every slot.

    Returns:
        Sums of shapes ``(g, 1)`` and ``(g, d)``.
    """
    rows = at_least_float32(rows)
    counts = slots.new_zeros(num_slots).index_add_(0, slots, torch.ones_like(slots)).unsqueeze(1)
    centres = _first_rows(rows, slots, num_slots)
    sums = widest(rows.new_zeros(2, *centres.shape))
    short = torch.zeros_like(sums, dtype=rows.dtype)
    buffer = buffer_for_part(rows)
    for part, part_slots in parts_of(rows, slots):
        offsets = torch.index_select(centres, 0, part_slots, out=buffer[: len(part)])
        torch.sub(part, offsets, out=offsets)
        index = part_slots.unsqueeze(1).expand_as(part)
        # Short sums in the rows' own dtype, of which float64 keeps the total.
        short.zero_()
        short[0].scatter_add_(0, index, offsets)
        short[1].scatter_add_(0, index, offsets.square_())
        sums += short
    offset = sums[0] / counts.clamp(min=1)
    squares = (sums[1] - counts * offset.square()).clamp(min=0)
    return Sums(counts, offset + widest(centres), squares)


def _first_rows(rows: Tensor, slots: Tensor, num_slots: int) -> Tensor:
    """A row of every slot, ``(g, d)``: what squares are taken from, lest a far mean swamp the spread."""
    if len(rows) == 0:
        return rows.new_zeros(num_slots, rows.shape[1])
    numbers = torch.arange(len(rows), device=rows.device)
    first = slots.new_zeros(num_slots).scatter_reduce_(0, slots, numbers, "amin", include_self=False)
    return rows.index_select(0, first)


def group_moments(sums: Sums) -> Moments:
    """Moments ``(g, d)``; the standard deviation of fewer than two rows reads 0."""
    return Moments(sums.mean, (sums.squares / (sums.count - 1).clamp(min=1)).sqrt())


def map_by_slot(rows: Tensor, slots: Tensor, affine: Affine, out: Tensor) -> None:
    """Writes every row ``(n, d)`` to ``out``, mapped by its slot's pair in ``affine``, ``(g, d)`` each."""
    scale, shift = buffer_for_part(rows), buffer_for_part(rows)
    for part, part_slots, part_out in parts_of(rows, slots, out):
        of_rows = Affine(
            torch.index_select(affine.scale, 0, part_slots, out=scale[: len(part)]),
            torch.index_select(affine.shift, 0, part_slots, out=shift[: len(part)]),
        )
        of_rows.map(part, out=part_out)
