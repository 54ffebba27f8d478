"""The rows of many groups at once, and a map of its own for each group, without a loop over groups."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .._dtypes import at_least_float32, widest
from .._parts import rows_at_a_time
from ._coordinates import Sums
from ._rows import Rows
from .affine import Affine
from .moments import Moments

# A CPU adds one number after the other, and rounds as often; and what it gathers for rows is to stay near it.
_MOST_AT_A_TIME = 512


class GroupSlots(NamedTuple):
    """Which of the batch's groups every row belongs to.

    A group's slot is a number in [0, g). Slot g holds the rows of all other groups.
    """

    memory: Tensor
    batch: Tensor
    num_groups: int


def group_slots(memory_groups: Tensor, batch_groups: Tensor) -> GroupSlots:
    """Slots of ``memory_groups`` ``(n,)`` and ``batch_groups`` ``(b,)``, int64.

    Example:
        >>> group_slots(torch.tensor([7, 4, 9]), torch.tensor([9, 7, 7]))
        GroupSlots(memory=tensor([0, 2, 1]), batch=tensor([1, 0, 0]), num_groups=2)
    """
    in_order = batch_groups.sort().values
    if in_order.device.type == "cpu":  # to count them, a GPU would have to wait for the host
        in_order = in_order.unique_consecutive()
    batch_slots = torch.searchsorted(in_order, batch_groups)
    nearest = torch.searchsorted(in_order, memory_groups).clamp(max=len(in_order) - 1)
    is_in_batch = in_order[nearest] == memory_groups
    memory_slots = torch.where(is_in_batch, nearest, len(in_order))
    return GroupSlots(memory_slots, batch_slots, len(in_order))


class GroupSums(NamedTuple):
    """Row counts, means and sums of squared deviations of groups, ``(..., g, 1)`` and ``(..., g, d)``."""

    num_rows: Tensor
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, rows: Tensor, slots: Tensor, num_slots: int) -> GroupSums:
        """Of the rows ``(n, d)`` of every slot ``(n,)``, in one pass over them."""
        count = slots.new_zeros(num_slots).index_add_(0, slots, torch.ones_like(slots)).unsqueeze(1)
        centres = _first_rows(rows, slots, num_slots)
        sums = widest(rows.new_zeros(2, *centres.shape))
        short = torch.zeros_like(sums, dtype=centres.dtype)
        at_a_time = _rows_at_a_time(rows)
        buffer = torch.empty_like(rows[:at_a_time], dtype=centres.dtype)
        for part, part_slots in zip(rows.split(at_a_time), slots.split(at_a_time), strict=True):
            offsets = torch.index_select(centres, 0, part_slots, out=buffer[: len(part)])
            torch.sub(part, offsets, out=offsets)
            index = part_slots.unsqueeze(1).expand_as(part)
            # Short sums in the rows' own dtype, of which float64 keeps the total.
            short.zero_()
            short[0].scatter_add_(0, index, offsets)
            short[1].scatter_add_(0, index, offsets.square_())
            sums += short
        offset = sums[0] / count.clamp(min=1)
        squares = (sums[1] - count * offset.square()).clamp(min=0)
        return cls(count, offset + widest(centres), squares)

    def moments(self) -> Moments:
        """Moments ``(g, d)``; the standard deviation of fewer than two rows reads 0."""
        return Moments(self.mean, (self.squares / (self.num_rows - 1).clamp(min=1)).sqrt())

    def mapped(self, affine: Affine) -> GroupSums:
        return GroupSums(
            self.num_rows, self.mean * affine.scale + affine.shift, self.squares * affine.scale.square()
        )

    def joined(self, other: GroupSums) -> GroupSums:
        """Of the rows of both."""
        count = self.num_rows + other.num_rows
        share = other.num_rows.to(self.mean) / count.clamp(min=1)
        delta = other.mean - self.mean
        squares = self.squares + other.squares + delta.square() * self.num_rows * share
        return GroupSums(count, self.mean + delta * share, squares)

    def total(self) -> Sums:
        """Sums over all rows and their squares."""
        first = self.num_rows * self.mean
        return Sums(first.sum(dim=-2), (self.squares + first * self.mean).sum(dim=-2))


def _rows_at_a_time(rows: Tensor) -> int:
    at_a_time = rows_at_a_time(rows)
    return min(at_a_time, _MOST_AT_A_TIME) if rows.device.type == "cpu" else at_a_time


def _first_rows(rows: Tensor, slots: Tensor, num_slots: int) -> Tensor:
    """A row of every slot, ``(g, d)``: what squares are taken from, lest a far mean swamp the spread."""
    if len(rows) == 0:
        return at_least_float32(rows.new_zeros(num_slots, rows.shape[1]))
    numbers = torch.arange(len(rows), device=rows.device)
    first = slots.new_zeros(num_slots).scatter_reduce_(0, slots, numbers, "amin", include_self=False)
    return at_least_float32(rows.index_select(0, first))


class GroupRows:
    """The rows of groups in a memory.

    Args:
        rows: the memory's.
        slots: of the groups, ``(n,)``, numbers in [0, g].
        num_groups: g; rows of slot g are of no group.
    """

    def __init__(self, rows: Rows, slots: Tensor, num_groups: int) -> None:
        self.rows, self.num_groups = rows, num_groups
        self.stored, self.places = rows.stored[: len(rows)], None
        if rows.stored.device.type == "cpu":  # on a GPU, to count them would make it wait for the host
            places = (slots < num_groups).nonzero().squeeze(1)
            # They are copied: of many, that would take more time than a pass over all.
            if len(places) < len(rows) / 8:
                self.places, self.stored = places, self.stored.index_select(0, places)
                slots = slots.index_select(0, places)
        # The slots of the older generation follow those of the newer one.
        places = torch.arange(len(rows), device=slots.device) if self.places is None else self.places
        self.slots = slots + (places >= rows.boundary) * (num_groups + 1)
        sums = GroupSums.of(self.stored, self.slots, 2 * (num_groups + 1))
        self.stored_sums = GroupSums(*(x.unflatten(0, (2, -1)) for x in sums))

    def moments(self) -> tuple[Tensor, Moments]:
        """Counts ``(g, 1)`` and moments ``(g, d)`` of the groups as they are now."""
        sums = self.stored_sums.mapped(_of_slots(self.rows))
        newer, older = (GroupSums(*(x[k, : self.num_groups] for x in sums)) for k in (0, 1))
        groups = newer.joined(older)
        return groups.num_rows, self.rows.without_rounding(groups.moments(), are_rewritten=True)

    def adapted(self, of_group: Affine, is_adapted: Tensor, of_others: Affine | None) -> Rows:
        """The rows after a map of all of them, but the rows of some groups after one of their own.

        Args:
            of_group: maps of the groups, ``(g, d)``, of the rows as they are now.
            is_adapted: which of the groups take theirs, ``(g, 1)``; the others' rows are not written to.
            of_others: map of all other rows; None where they stay.
        """
        before, after = _of_slots(self.rows), self.rows
        others = before
        if of_others is not None:
            others, after = of_others.after(before), after.adapted(of_others)
        now = _where(is_adapted, of_group.after(before), others)
        if self.places is None and not self.rows.coordinates.is_as_stored:
            # All rows are passed over, so that any coordinates will do.
            come_to = after.without_rounding(_of_all(self.stored_sums.mapped(now)), are_rewritten=True)
            after = replace(after, coordinates=after.coordinates.near(come_to, self.stored.dtype))
        new = _of_slots(after)
        of_stored = Affine(now.scale / new.scale, (now.shift - new.shift) / new.scale)
        of_stored = of_stored.bounded(*self.stored_sums.moments(), len(after), after.dtype)
        sums = after.coordinates.sums
        if sums is not None:
            then = self.stored_sums.mapped(of_stored).total()
            if self.places is None:  # what is measured at every step gathers no rounding
                sums = then
            elif after.stored is self.rows.stored:
                sums = sums.plus(then).plus(self.stored_sums.total(), -1)
            else:  # of rows that are stored anew, the old sums say nothing
                sums = None
            after = replace(after, coordinates=after.coordinates._replace(sums=sums))
        of_slot = Affine(*(x.flatten(0, 1).to(self.rows.dtype) for x in of_stored))
        if self.places is None:
            return after.replaced(lambda out: self._mapped(of_slot, out))
        return after.written(self.places, self._mapped(of_slot, torch.empty_like(self.stored)))

    def _mapped(self, of_slot: Affine, out: Tensor) -> Tensor:
        """The stored rows, each mapped by its slot's pair in ``of_slot``, written to ``out``."""
        at_a_time = _rows_at_a_time(out)
        buffers = [torch.empty_like(out[:at_a_time], dtype=of_slot.scale.dtype) for _ in range(2)]
        parts = zip(*(x.split(at_a_time) for x in (self.stored, self.slots, out)), strict=True)
        for stored, slots, mapped in parts:
            scale, shift = (
                torch.index_select(x, 0, slots, out=buffer[: len(stored)])
                for x, buffer in zip(of_slot, buffers, strict=True)
            )
            if stored.dtype == scale.dtype:
                torch.addcmul(shift, stored, scale, out=mapped)
            else:
                shift.addcmul_(stored.to(scale.dtype), scale)
                mapped.copy_(shift.clamp_(torch.finfo(out.dtype).min, torch.finfo(out.dtype).max))
        return out


def _of_slots(rows: Rows) -> Affine:
    """The map of the stored rows of every slot of each generation, ``(2, 1, d)``."""
    return Affine(*(x.unsqueeze(1) for x in rows.coordinates.map))


def _where(is_adapted: Tensor, of_groups: Affine, of_others: Affine) -> Affine:
    """Maps ``(2, g + 1, d)``: those ``(2, g, d)`` of adapted groups, and ``(2, 1, d)`` for all others."""
    pairs = zip(of_groups, of_others, strict=True)
    return Affine(*(torch.cat([torch.where(is_adapted, x, y), y], dim=1) for x, y in pairs))


def _of_all(sums: GroupSums) -> Moments:
    """Moments of the rows of all slots of both generations."""
    count, means, squares = (x.flatten(0, 1) for x in sums)
    num_rows = count.sum()
    mean = (count * means).sum(dim=0) / num_rows
    squares = (squares + count * (means - mean).square()).sum(dim=0)
    return Moments(mean, (squares / (num_rows - 1)).sqrt())
