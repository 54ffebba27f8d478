"""Rows that are stored where they rarely move, with one map from there to where they are now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from .._arithmetic import rows_at_a_time, slices, widest
from ..adapters.affine import Affine
from ..adapters.moments import Moments, moments

# Rows are whitened again where stored ones have a larger root mean square: float16 ends at 65504, and
# moments lose digits. They also are where the scale of the map has shrunk to this least one: different rows
# to come would be stored as the same numbers.
_LARGEST_RMS = 4.0
_LEAST_SCALE = 2.0**-48
# A shorter vector is one of zeros, as torch.nn.functional.normalize has it.
_SMALLEST_LENGTH = 1e-12
# A smaller spread of stored rows, which are of the order of one, is one of rounding.
_LEAST_SPREAD = 2.0**-23
# A row is zero once its length is at most that many roundings of the shift: it was rounded when it was
# stored and when it was stored anew, and is rounded as it is read, by half a unit each.
_ROUNDINGS_OF_ZERO = 2.0
# In float16 rows to come fit where the scale is at least this share of the root mean square of all rows.
_LEAST_SHARE_OF_FLOAT16 = 2.0**-8

Self = TypeVar("Self", bound="Rows")


@dataclass(frozen=True, eq=False)
class Rows:
    r"""The rows of a memory, :math:`\hat z = a \circ u + b` of stored rows u with one map (a, b).

    A map of all rows composes with (a, b) and touches no row. Moments follow from sums over u and u². Where
    these are not kept, a = 1 and b = 0: rows are stored as they are until somebody measures them.

    Maps are composed and inverted in float64, because the inverse of a scale may be as large as 2⁴⁸. So are
    the numbers that are written, and rounded once: rows that are stored, rows that are whitened, and rows
    that the map of their group moves. Rows are read in float32 or better: a ∘ u + b is then off by roundings
    of its own terms and no more.
    """

    stored: Tensor  # u, (M, d); zeros where there is no row
    count: int  # n, how many of the M places hold a row: the first ones
    scale: Tensor  # a, (d,) float64, never zero
    shift: Tensor  # b, (d,) float64
    num_places: int  # M; as n, on all ranks together
    dtype: torch.dtype  # in which rows are read, float32 or float64
    sums: tuple[Tensor, ...] | None = None  # over u and over u², (d,) each, float64
    # Whether u is to be written anew with mean 0 and σ 1. `find_places` does it before a step whose rows are
    # out of range, and `transaction` after a step that ended a turn.
    needs_whitening: bool = False
    # Tensors that were written to in place, where, and what was there before, so that a failed step can be
    # undone.
    overwritten: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    _maps: dict[torch.dtype, Affine] = field(default_factory=dict, init=False)
    _least_lengths: dict[torch.dtype, Tensor | float] = field(default_factory=dict, init=False)

    @classmethod
    def empty(
        cls, num_places: int, embedding_size: int, dtype: torch.dtype, device: torch.device | None = None
    ) -> Rows:
        """Returns places without a row yet."""
        stored = torch.zeros(num_places, embedding_size, dtype=dtype, device=device)
        zeros = widest(stored.new_zeros(embedding_size))
        return cls(stored, 0, zeros + 1, zeros, num_places, torch.promote_types(dtype, torch.float32))

    @classmethod
    def of(cls, values: Tensor, num_places: int, dtype: torch.dtype) -> Rows:
        """Returns rows ``(n, d)``, stored as they are, in half precision whitened."""
        rows = Rows.empty(num_places, values.shape[1], dtype, values.device)._ready_for(values)
        for part in slices(len(values), rows_at_a_time(values)):
            rows.stored[part] = rows._to_store(values[part]).to(dtype)
        sums = None if rows.sums is None else sums_of(rows.stored[: len(values)])
        return replace(rows, count=len(values), sums=sums)

    def in_dtype(self, dtype: torch.dtype) -> Rows:
        """Returns these rows, stored in another dtype."""
        return Rows.of(self.read(self.dtype), len(self.stored), dtype)

    def __len__(self) -> int:
        """Returns how many rows the memory holds, on all ranks together."""
        return self.count

    @property
    def num_rows_here(self) -> int:
        """How many of them this process stores; all of them, where rows are not spread over ranks."""
        return self.count

    def over_ranks(self, sums: Tensor) -> Tensor:
        """Returns the sums over the rows of all ranks, given those over the rows here."""
        return sums

    @property
    def totals(self) -> tuple[Tensor, ...]:
        """Sums over the stored rows of all ranks, measured."""
        assert self.sums is not None
        return self.sums

    def own_part(self, places: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Returns which of these places ``(k,)`` are stored here, and the values of these."""
        return places, values

    def global_places(self, places: Tensor) -> Tensor:
        """Returns places ``(k,)`` as all ranks count them, found on any of them; -1 where on none."""
        return places

    def _map(self, dtype: torch.dtype) -> Affine:
        """Returns the map from stored rows to rows as they are now."""
        if dtype not in self._maps:  # both passes of a loss ask for it
            self._maps[dtype] = Affine(self.scale.to(dtype), self.shift.to(dtype))
        return self._maps[dtype]

    @property
    def map_as_read(self) -> Affine:
        """The map from stored rows to rows as they are now, in the dtype in which they are read."""
        return self._map(self.dtype)

    def least_length(self, dtype: torch.dtype) -> Tensor | float:
        """Returns the length up to which a row that is read in this dtype is one of zeros.

        A row of zeros that was stored under a map comes back as what the map's shift was rounded by. Such a
        row has no direction, and would get one if it were scaled to unit length.
        """
        if self.sums is None:  # rows are as they came
            return _SMALLEST_LENGTH
        if dtype not in self._least_lengths:
            eps = max(torch.finfo(self.stored.dtype).eps, torch.finfo(dtype).eps)
            length = torch.linalg.vector_norm(self.shift).mul_(_ROUNDINGS_OF_ZERO * eps)
            self._least_lengths[dtype] = length.clamp_min_(_SMALLEST_LENGTH).to(dtype)
        return self._least_lengths[dtype]

    def _without_rounding(self, rows: Tensor) -> Tensor:
        """Returns rows ``(k, d)`` that were read, in place, of which those of rounding alone are zero."""
        if self.sums is None:
            return rows
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return rows.masked_fill_(lengths <= self.least_length(rows.dtype), 0.0)

    def parts(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """Yields the rows as they are now, in order; the tensor of a part may be overwritten by the next."""
        scale, shift = self._map(dtype)
        is_read_as_stored = self.sums is None and self.stored.dtype == dtype
        room = self.stored if is_read_as_stored else self._room(dtype)
        for part in slices(self.num_rows_here, rows_at_a_time(self.stored)):
            rows = self._in_dtype_of(room, part)
            if self.sums is not None:
                rows = torch.addcmul(shift, rows, scale, out=room[: len(rows)])
            yield part, rows

    def _room(self, dtype: torch.dtype) -> Tensor:
        """Returns a tensor to read parts of the rows into, one after the other."""
        num_rows = min(self.num_rows_here, rows_at_a_time(self.stored))
        return self.stored.new_empty(num_rows, self.stored.shape[1], dtype=dtype)

    def _in_dtype_of(self, room: Tensor, part: slice) -> Tensor:
        """Returns a part of the rows as they are stored, in ``room`` if that is of another dtype."""
        rows = self.stored[part]
        return rows if rows.dtype == room.dtype else room[: len(rows)].copy_(rows)

    def read(self, dtype: torch.dtype) -> Tensor:
        """Returns all rows as they are now, ``(n, d)``, in a tensor of their own."""
        rows = self.stored.new_empty(self.num_rows_here, self.stored.shape[1], dtype=dtype)
        for part, values in self.parts(dtype):
            rows[part] = self._without_rounding(values)
        return rows

    def at(self, places: Tensor) -> Tensor:
        """Returns the rows at these places ``(k,)`` as they are now, ``(k, d)``."""
        return self._without_rounding(self._map(self.dtype).map(self.stored[places].to(self.dtype)))

    def weighted_sum(self, weights: Tensor, row_factors: Tensor | None = None) -> Tensor:
        """Returns ``(a, d)``, the sum over j of ``weights[:, j]`` times ``row_factors[j]`` times row j."""
        dtype = weights.dtype
        room = self.stored if self.stored.dtype == dtype else self._room(dtype)
        if self.num_rows_here <= rows_at_a_time(self.stored):
            weights = weights if row_factors is None else weights * row_factors
            total = weights @ self._in_dtype_of(room, slice(0, self.num_rows_here))
            weight_sums = weights.sum(dim=1, keepdim=True)
        else:  # a part at a time, as a copy of the weights may not fit
            total = weights.new_zeros(len(weights), self.stored.shape[1])
            weight_sums = weights.new_zeros(len(weights), 1)
            for part in slices(self.num_rows_here, rows_at_a_time(self.stored)):
                own = weights[:, part] if row_factors is None else weights[:, part] * row_factors[part]
                total.addmm_(own, self._in_dtype_of(room, part))
                weight_sums += own.sum(dim=1, keepdim=True)
        # The sum of a ∘ u + b is a ∘ (the sum of u) + b: no row has to be mapped for it.
        scale, shift = self._map(dtype)
        return (total * scale).addcmul_(weight_sums, shift)

    def measured(self: Self) -> Self:
        """Returns these rows with their sums, stored whitened.

        Rows to come are stored under the map of these. If these had stayed as they came, with a mean of many
        spreads, those would lose digits.
        """
        if self.sums is not None:
            return self
        rows = replace(self, sums=sums_of(self.stored[: self.num_rows_here]))
        return rows.whitened(torch.zeros_like(self.stored))

    def moments(self, sums: tuple[Tensor, ...] | None = None, count: Tensor | int = 0) -> Moments:
        """Returns the moments of all rows as they are now, or of groups, given their sums ``(g, d)``."""
        (first, second), count = (self.totals, len(self)) if sums is None else (sums, count)
        mean = first / count
        squares = torch.addcmul(second, first, mean, value=-1)
        # What rounding makes of equal rows, and of the sums, is no spread.
        rounding = 8 * max(torch.finfo(self.stored.dtype).eps, 1e-8)
        squares *= torch.sub(squares, second, alpha=rounding**2) > count * _LEAST_SPREAD**2
        std = squares.div_(count - 1).sqrt_().mul_(self.scale.abs())
        return Moments(torch.addcmul(self.shift, mean, self.scale), std)

    def adapted(self: Self, affine: Affine) -> Self:
        """Returns the rows after a map of all of them."""
        scale, shift = self.scale * affine.scale, torch.addcmul(affine.shift, self.shift, affine.scale)
        return replace(self, scale=scale.masked_fill_(scale.abs() < _LEAST_SCALE, _LEAST_SCALE), shift=shift)

    def where_finite(self: Self, before: Rows) -> Self:
        """Returns these rows, in dimensions in which their map holds NaN or inf with that of ``before``."""
        scale, shift = Affine(self.scale, self.shift).where_finite(Affine(before.scale, before.shift))
        return replace(self, scale=scale, shift=shift)

    def group_moments(self, slots: Tensor, num_groups: int) -> tuple[Tensor, Moments]:
        """Returns counts ``(g, 1)`` and moments ``(g, d)`` of the rows of every slot ``(n,)`` below g."""
        count = slots.new_zeros(num_groups + 1).index_add_(0, slots, torch.ones_like(slots)).unsqueeze(1)
        sums = widest(self.stored.new_zeros(2, num_groups + 1, self.stored.shape[1]))
        first, second = sums
        for places, part_slots in self._grouped(slots, num_groups):
            wide = widest(self.stored[places])
            first.index_add_(0, part_slots, wide)
            second.index_add_(0, part_slots, wide.square_())
        count = self.over_ranks(count)[:-1]
        sums = self.over_ranks(sums).narrow(1, 0, num_groups)
        return count, self.moments((sums[0], sums[1]), count.clamp(min=2))

    def adapted_in_groups(self: Self, maps: Affine, slots: Tensor, other_map: Affine) -> Self:
        """Returns the rows after the maps of their slots ``(n,)``, of which the last is the other map."""
        scale, shift = maps.after(Affine(self.scale, self.shift))
        after = self.adapted(other_map)
        # From stored rows by the map of their group, and back from where all are read.
        scale, shift = scale / after.scale, (shift - after.shift) / after.scale
        is_spoilt = ~torch.isfinite(scale + shift)
        scale, shift = scale.masked_fill_(is_spoilt, 1.0), shift.masked_fill_(is_spoilt, 0.0)
        for places, part_slots in self._grouped(slots, len(scale) - 1):
            stored = torch.addcmul(shift[part_slots], widest(self.stored[places]), scale[part_slots])
            after = after._written(places, stored)
        return after

    def _grouped(self, slots: Tensor, num_groups: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields places and slots of the rows of groups; of all rows where to find those takes longer.

        To find them the host waits for a GPU. That is worth it once all are more than a part: on an H200 a
        step of a million rows took 20 ms instead of 87.
        """
        at_a_time = rows_at_a_time(self.stored, 8)
        if slots.device.type == "cpu" or len(slots) > at_a_time:
            places = (slots < num_groups).nonzero().squeeze(1)
            slots = slots[places]
        else:
            places = torch.arange(len(slots), device=slots.device)
        yield from zip(places.split(at_a_time), slots.split(at_a_time), strict=True)

    def put(self: Self, places: Tensor, values: Tensor, count: int, ends_turn: bool) -> Self:
        """Returns these rows with ``values`` ``(k, d)`` at the places ``(k,)``; n are occupied then."""
        before = self._ready_for(values)
        places, values = self.own_part(places, values)
        after = before._written(places, before._to_store(values))
        return replace(
            after, count=count, needs_whitening=self.needs_whitening or (ends_turn and after.sums is not None)
        )

    def _to_store(self, values: Tensor) -> Tensor:
        """Returns u ``(k, d)`` of these rows, in float64; the rows themselves if they are stored as is."""
        return values if self.sums is None else (values - self.shift).div_(self.scale)

    def _written(self: Self, places: Tensor, stored: Tensor) -> Self:
        """Writes stored rows ``(k, d)`` in place, in their dtype, and returns the rows with new sums."""
        dtype = self.stored.dtype
        if dtype == torch.float16:
            # inf becomes NaN, and not a number.
            stored = stored.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max) + stored * 0
        stored, gone = stored.to(dtype), self.stored.index_select(0, places)  # zeros where there was no row
        self.overwritten.append((self.stored, places, gone))
        self.stored.index_copy_(0, places, stored)
        if self.sums is None:
            return self
        first, second = self.sums
        new = widest(stored)
        change = new - gone
        sums = first + change.sum(dim=0), second + change.mul_(new.add_(gone)).sum(dim=0)
        return replace(self, sums=sums)

    def undo(self) -> None:
        """Writes back what has been overwritten since the last step that succeeded."""
        while self.overwritten:
            stored, places, before = self.overwritten.pop()
            stored[places] = before

    def is_out_of_range(self) -> Tensor | None:
        """Returns whether rows have to be whitened again, a 0-d bool tensor; None where sums are not kept."""
        if self.sums is None:
            return None
        least: Tensor | float = _LEAST_SCALE
        if self.stored.dtype == torch.float16:
            least = _LEAST_SHARE_OF_FLOAT16 / 16 * _rms(self.moments())
        is_out = (self.totals[1] > len(self) * _LARGEST_RMS**2) | (self.scale.abs() <= least)
        return is_out.any()

    def whitened(self: Self, new: Tensor) -> Self:
        """Returns these rows, written to a tensor ``(M, d)`` so that u has mean 0 and σ 1.

        ``new`` may be the tensor that holds them.
        """
        mean, std = self.moments()
        std = std.masked_fill(std <= _LARGEST_RMS * _LEAST_SCALE * (1 + mean.abs()), 0.0)
        scale, shift = self._whitening(Moments(mean, std))
        # Rows that have become equal are zeros.
        factor = (self.scale / scale).masked_fill_(std == 0, 0.0)
        offset = ((self.shift - shift) / scale).masked_fill_(std == 0, 0.0)
        done = 0
        try:
            for part in slices(self.num_rows_here, rows_at_a_time(new, 8)):
                new[part] = torch.addcmul(offset, widest(self.stored[part]), factor)
                done = part.stop
            # Measured and not computed: what they are off by would stay for ever.
            sums = sums_of(new[: self.num_rows_here])
        except BaseException:  # an interrupt, or no memory is left
            for part in slices(done if new is self.stored else 0, 1024):
                before = (widest(new[part]) - offset) / factor
                new[part] = torch.where(factor == 0, (mean - self.shift) / self.scale, before)
            raise
        return replace(self, stored=new, scale=scale, shift=shift, sums=sums, needs_whitening=False)

    def _ready_for(self: Self, values: Tensor) -> Self:
        """Returns these rows, with a map that whitens if ``values`` ``(k, d)`` are to be their first."""
        is_whitened = self.sums is not None or self.stored.dtype.itemsize < 4
        if len(self) > 0 or len(values) == 0 or not is_whitened:
            return self
        wide, zeros = widest(values), torch.zeros_like(self.shift)
        scale, shift = self._whitening(moments(wide) if len(wide) > 1 else Moments(wide[0], zeros))
        return replace(self, scale=scale, shift=shift, sums=(zeros, zeros))

    def _whitening(self, found: Moments) -> Affine:
        """Returns the map to rows of these moments from where they are stored whitened."""
        rms, scale = _rms(found), found.std
        if self.stored.dtype == torch.float16:  # rows may come that differ where all are nearly equal
            scale = torch.maximum(scale, _LEAST_SHARE_OF_FLOAT16 * rms)
        # What equal rows are off by is small beside the spread that they had.
        equal = torch.maximum(rms, self.scale.abs()) if len(self) > 0 else rms
        scale = torch.where(found.std > 0, scale, torch.where(equal > _LEAST_SCALE, equal, 1.0))
        # A row of NaN leaves the map of its dimensions as it is.
        return Affine(scale, found.mean).where_finite(Affine(self.scale, self.shift))


def sums_of(stored: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sums over stored rows u ``(n, d)`` and over u²."""
    first, second = widest(stored.new_zeros(2, stored.shape[1]))
    for part in stored.split(rows_at_a_time(stored, 8)):
        wide = widest(part)
        first += wide.sum(dim=0)
        second += wide.square().sum(dim=0)
    return first, second


def _rms(found: Moments) -> Tensor:
    """Returns the root mean square over rows and dimensions, without those that hold NaN."""
    return (found.mean.square() + found.std.square()).nan_to_num_(0, 0, 0).mean().sqrt()
