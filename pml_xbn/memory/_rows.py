"""The rows of a memory: stored once, and read through one scale and shift per dimension."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from .._arithmetic import rows_at_a_time, slices, widest
from .._tracing import can_read, computed_once, is_in_compiled_step, is_tracing, number
from ..adapters.moments import NO_SPREAD, Affine, GroupMoments, Moments, moments
from ._multiply_dimensions import multiply_dimensions_

# Stored rows are standardized again where their root mean square is larger: float16 ends at 65504, and
# moments lose digits.
LARGEST_RMS = 4.0
# A dimension in which the newest batch has no spread gets this scale. The next row that differs is stored as
# a large number, so that rows are standardized again then.
_LEAST_SCALE = 2.0**-48
# A shorter vector is one of zeros, as torch.nn.functional.normalize has it.
_SMALLEST_LENGTH = 1e-12
# A smaller spread of stored rows, which are of the order of one, is rounding error.
_LEAST_SPREAD = 2.0**-23
# A row is zero once its length is at most that many rounding errors of the shift: it was rounded when it was
# stored and when it was stored anew, and is rounded as it is read, by half a unit each.
_ROUNDINGS_OF_ZERO = 2.0
# In float16 incoming rows fit where the scale is at least this fraction of the root mean square of all rows.
_LEAST_FRACTION_OF_FLOAT16 = 2.0**-8

Value = TypeVar("Value")


class Holding:
    """Says which of the memory's rows this process holds: here all of them."""

    def num_rows_here(self, num_rows: int) -> int:
        """Returns how many of the occupied rows are stored here."""
        return num_rows

    def sum(self, values: Tensor) -> Tensor:
        """Returns the sum over the processes that share the memory."""
        return values

    def own_part(self, indices: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        """Returns those of the indices ``(k,)`` that are held here, as counted here, and their values."""
        return indices, *values

    def global_indices(self, indices: Tensor) -> Tensor:
        """Returns indices ``(k,)`` as all processes count them, found on any of them; -1 where on none."""
        return indices


class Overwritten(NamedTuple):
    """What was in a tensor before a step wrote to it."""

    values: Tensor
    indices: Tensor
    before: Tensor


class AsTheyCame(NamedTuple):
    """The rows that a step has stored, before they lost digits."""

    indices: Tensor  # (k,), here
    rows: Tensor  # (k, d)
    is_accepted: Tensor | None  # 0-d bool, whether they were stored at all; None: they were


class Undo(list[Overwritten]):
    """What a step has overwritten in place, so that a step that fails can be undone."""

    def write_(self, values: Tensor, indices: Tensor, new: Tensor) -> Tensor:
        """Writes ``new`` ``(k, ...)`` at the indices ``(k,)``; returns what was there."""
        before = values.index_select(0, indices)
        self.append(Overwritten(values, indices, before))
        values.index_copy_(0, indices, new)
        return before

    def undo_(self) -> None:
        """Writes back what was there."""
        while self:
            values, indices, before = self.pop()
            values.index_copy_(0, indices, before)


class Rows:
    r"""The rows of a memory as they are now, :math:`\hat z = a \circ u + b` of the stored rows u.

    A map of all rows composes with (a, b) and rewrites no row. The moments of the rows follow from those of
    u, which are kept as sums over u and u². Without sums a = 1 and b = 0: rows are stored as they came.

    Maps are composed and inverted in float64, because the inverse of a scale may be as large as 2⁴⁸. So are
    the numbers that are written, and rounded once: rows that are stored, rows that are standardized, and rows
    that the map of their group moves. Rows are read in float32 or better: a ∘ u + b is then off by the
    rounding of its own terms.

    Attributes:
        stored: u, ``(M, d)``; zeros where there is no row.
        affine: a and b, ``(d,)`` each, float64; a is never zero.
        sums: over u and over u², ``(2, d)`` float64; None until something has measured the rows.
        num_rows: n, how many rows are occupied, on all ranks together; the first ones. A 0-d tensor where the
            host cannot read it without waiting.
        most_rows_here: at most so many rows are occupied here, the first ones; a number of the host. It is
            their exact number where ``num_rows`` is an int.
        holding: which of the rows this process holds.
    """

    def __init__(
        self,
        stored: Tensor,
        affine: Affine,
        sums: Tensor | None,
        num_rows: int | Tensor,
        most_rows_here: int,
        holding: Holding,
    ) -> None:
        self.stored, self.affine, self.sums = stored, affine, sums
        self.num_rows, self.most_rows_here, self.holding = num_rows, most_rows_here, holding
        self._rounded_affine: dict[torch.dtype, Affine] = {}
        self._total_sums: Tensor | None = None
        # What u is multiplied by once the step is over, (d,), where nothing else keeps it in range.
        self._factors: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which rows are read, float32 or float64."""
        return read_dtype(self.stored.dtype)

    @property
    def has_two(self) -> bool | Tensor:
        """Whether there are two rows, and so moments."""
        if isinstance(self.num_rows, Tensor) and self.most_rows_here < 2:
            return False
        return self.num_rows > 1

    @property
    def is_empty(self) -> bool:
        """Whether there is no row for certain, on any rank."""
        return self.most_rows_here == 0 if isinstance(self.num_rows, Tensor) else self.num_rows == 0

    @property
    def is_row(self) -> Tensor | None:
        """Which of the first ``most_rows_here`` rows are occupied, ``(n,)`` bool; None where all are."""
        if not isinstance(self.num_rows, Tensor):
            return None
        return torch.arange(self.most_rows_here, device=self.stored.device) < self.num_rows

    def replaced(
        self, *, affine: Affine | None = None, sums: Tensor | None = None, stored: Tensor | None = None
    ) -> Rows:
        """Returns rows with another map, other sums or other stored rows."""
        rows = type(self)(
            self.stored if stored is None else stored,
            self.affine if affine is None else affine,
            self.sums if sums is None else sums,
            self.num_rows,
            self.most_rows_here,
            self.holding,
        )
        rows._factors = self._factors
        if affine is None:
            rows._rounded_affine = self._rounded_affine
        return rows

    def counted(self, num_rows: int | Tensor, most_rows_here: int) -> Rows:
        """Returns the rows with other numbers of occupied ones."""
        rows = type(self)(self.stored, self.affine, self.sums, num_rows, most_rows_here, self.holding)
        rows._rounded_affine, rows._factors = self._rounded_affine, self._factors
        return rows

    def with_number_on_host(self) -> Rows:
        """Returns the rows with their exact number as one of the host, for which a GPU is waited for."""
        if not isinstance(self.num_rows, Tensor) or self.num_rows.is_meta:  # which holds no rows
            return self
        num_rows = int(self.num_rows)
        return self.counted(num_rows, self.holding.num_rows_here(num_rows))

    # Reading.

    def affine_in(self, dtype: torch.dtype) -> Affine:
        """Returns the map from stored rows to rows as they are now, rounded once."""
        if dtype not in self._rounded_affine:  # both passes of a loss ask for it
            rounded = (computed_once(x.to(dtype)) for x in self.affine)
            self._rounded_affine[dtype] = Affine(*rounded)
        return self._rounded_affine[dtype]

    def least_length(self, dtype: torch.dtype) -> Tensor | float:
        """Returns the length up to which a row that is read in this dtype is one of zeros.

        A row of zeros that was stored under a map comes back as what the map's shift was rounded by. Such a
        row has no direction, and would get one if it were scaled to unit length.
        """
        if self.sums is None:  # rows are as they came
            return _SMALLEST_LENGTH
        eps = _ROUNDINGS_OF_ZERO * max(torch.finfo(self.stored.dtype).eps, torch.finfo(dtype).eps)
        shift = self.affine.shift
        if can_read(shift):
            return float(max(eps * math.sqrt(number(torch.dot(shift, shift))), _SMALLEST_LENGTH))
        least: Tensor = torch.linalg.vector_norm(shift).mul_(eps).clamp_min_(_SMALLEST_LENGTH).to(dtype)
        return least

    def zero_rounding_(self, rows: Tensor) -> Tensor:
        """Zeroes, in place, rows ``(k, d)`` that are only rounding error."""
        if self.sums is None:
            return rows
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return rows.masked_fill_(lengths <= self.least_length(rows.dtype), 0.0)

    def parts(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """Yields the rows as they are now, in order; the tensor of a part may be overwritten by the next."""
        scale, shift = self.affine_in(dtype)
        is_as_stored = self.sums is None and self.stored.dtype == dtype
        buffer = None if is_as_stored else self._buffer(dtype)
        for part in slices(self.most_rows_here, rows_at_a_time(self.stored)):
            rows = self._stored_part(part, dtype, buffer)
            if self.sums is not None:
                into = None if buffer is None else buffer[: rows.shape[0]]
                if self.stored.dtype != dtype:  # so that these are a copy
                    into = rows
                rows = torch.addcmul(shift, rows, scale, out=into)
            yield part, rows

    def products(self, vectors: Tensor) -> Tensor:
        """Returns the products of vectors ``(k, d)`` with all rows, ``(k, n)``, without mapping a row."""
        dtype, (scale, shift) = vectors.dtype, self.affine_in(vectors.dtype)
        at_a_time = self.most_rows_here if self.stored.dtype == dtype else rows_at_a_time(self.stored)
        parts = slices(self.most_rows_here, max(1, at_a_time))
        # Of a plus torch.compile makes a product that begins with the offset, which it first writes out.
        negative = vectors * -scale
        mats = [negative @ self._stored_part(part, dtype, None).t() for part in parts]
        mat = mats[0] if len(mats) == 1 else torch.cat(mats, dim=1)
        return (vectors @ shift).unsqueeze(1) - mat

    def lengths(self, dtype: torch.dtype) -> Tensor:
        """Returns the lengths of all rows, ``(n,)``."""
        scale, shift = self.affine_in(dtype)
        stored = self._stored_part(slice(0, self.most_rows_here), dtype, None)
        lengths: Tensor = torch.linalg.vector_norm(torch.addcmul(shift, stored, scale), dim=1)
        return lengths

    def _buffer(self, dtype: torch.dtype) -> Tensor | None:
        """Returns a tensor to read parts of the rows into, one after the other; None if all are one part."""
        num_rows = rows_at_a_time(self.stored)
        if self.most_rows_here <= num_rows:
            return None
        return self.stored.new_empty(num_rows, self.stored.shape[1], dtype=dtype)

    def _stored_part(self, part: slice, dtype: torch.dtype, buffer: Tensor | None) -> Tensor:
        """Returns a part of u in this dtype; a copy that this needs is in the buffer, if there is one."""
        is_all = part.stop - part.start == self.stored.shape[0]
        rows = self.stored if is_all else self.stored[part]
        if rows.dtype == dtype:
            return rows
        return rows.to(dtype) if buffer is None else buffer[: rows.shape[0]].copy_(rows)

    def read(self, dtype: torch.dtype) -> Tensor:
        """Returns all rows as they are now, ``(n, d)``, in a tensor of their own."""
        rows = self.stored.new_empty(self.most_rows_here, self.stored.shape[1], dtype=dtype)
        for part, values in self.parts(dtype):
            rows[part] = self.zero_rounding_(values)
        return rows

    def at(self, indices: Tensor) -> Tensor:
        """Returns the rows at these indices ``(k,)`` as they are now, ``(k, d)``."""
        return self.zero_rounding_(self.affine_in(self.dtype).map(self.stored[indices].to(self.dtype)))

    def weighted_sum(self, weights: Tensor, row_factors: Tensor | None = None) -> Tensor:
        """Returns ``(a, d)``, the sum over j of ``weights[:, j]`` times ``row_factors[j]`` times row j.

        It may overwrite the weights ``(a, n)``.
        """
        dtype, at_a_time = weights.dtype, rows_at_a_time(self.stored)
        # torch.compile makes a kernel of every part.
        if self.most_rows_here <= at_a_time or (is_in_compiled_step() and self.stored.dtype == dtype):
            weights = weights if row_factors is None else weights.mul_(row_factors)
            weight_sums = weights.sum(dim=1, keepdim=True)
            total = weights @ self._stored_part(slice(0, self.most_rows_here), dtype, None)
        else:  # a part at a time, as a copy of the weights may not fit
            total = weights.new_zeros(len(weights), self.stored.shape[1])
            weight_sums = weights.new_zeros(len(weights), 1)
            buffer = None if self.stored.dtype == dtype else self._buffer(dtype)
            for part in slices(self.most_rows_here, at_a_time):
                own = weights[:, part] if row_factors is None else weights[:, part].mul_(row_factors[part])
                weight_sums += own.sum(dim=1, keepdim=True)
                total.addmm_(own, self._stored_part(part, dtype, buffer))
        # The sum of a ∘ u + b is a ∘ (the sum of u) + b: no row has to be mapped for it.
        scale, shift = self.affine_in(dtype)
        return total.mul_(scale).addcmul_(weight_sums, shift)

    # Measuring.

    def measured(self) -> Rows:
        """Returns the rows with their sums."""
        return (
            self if self.sums is not None else self.replaced(sums=sums_of(self.stored[: self.most_rows_here]))
        )

    def total_sums(self) -> Tensor:
        """Returns the sums over u and u² of all ranks, ``(2, d)``; rows have been measured."""
        assert self.sums is not None
        if self._total_sums is None:  # ranks send each other theirs once
            self._total_sums = self.holding.sum(self.sums)
        return self._total_sums

    def moments(self) -> Moments:
        """Returns the moments of the rows as they are now, ``(d,)`` each, in float64."""
        return self._moments(self.total_sums(), self.num_rows)

    def _moments(self, sums: Tensor, count: Tensor | int) -> Moments:
        """Returns moments as they are now, given sums over u and u², ``(2, d)`` or ``(2, g, d)``."""
        mean, square = (sums / count).unbind()
        variance = torch.addcmul(square, mean, mean, value=-1)
        # What rounding makes of equal rows, and of the sums, is no spread.
        rounding = 8 * max(torch.finfo(self.stored.dtype).eps, 1e-8)
        variance *= torch.sub(variance, square, alpha=rounding**2) > _LEAST_SPREAD**2
        std = variance.mul_(_unbiased(count)).sqrt_().mul_(self.affine.scale.abs())
        return Moments(torch.addcmul(self.affine.shift, mean, self.affine.scale), std)

    def group_moments(self, group_ids: Tensor, num_groups: int) -> GroupMoments:
        """Returns sizes and moments of groups of rows; ids ``(n,)`` of ``num_groups`` are of none."""
        ones = torch.ones_like(group_ids)
        count = group_ids.new_zeros(num_groups + 1).index_add_(0, group_ids, ones).unsqueeze(1)
        sums = widest(self.stored.new_zeros(2, num_groups + 1, self.stored.shape[1]))
        first, second = sums
        for indices, ids in self._rows_of_groups(group_ids, num_groups):
            wide = widest(self.stored[indices])
            first.index_add_(0, ids, wide)
            second.index_add_(0, ids, wide.square_())
        count = self.holding.sum(count)[:-1]
        sums = self.holding.sum(sums).narrow(1, 0, num_groups)
        return GroupMoments(count, self._moments(sums, count.clamp(min=2)))

    # Adapting.

    @property
    def is_kept_in_range(self) -> bool:
        """Whether every step begins by standardizing rows whose u has become large."""
        return can_read(self.stored) and type(self.holding) is Holding

    def mapped(self, affine: Affine) -> Rows:
        """Returns the rows after a map of all of them."""
        rows = self._mapped(affine)
        if self.is_kept_in_range or self.sums is None:
            return rows
        # No scale of the map goes below 2⁻⁴⁸. What is missing is multiplied into u once the step is over, or
        # u becomes 0 if all rows are equal then. A filter's spread falls to zero step by step; a row that was
        # stored meanwhile has a large u, by which it still differs, so that the spread is looked at too.
        scale = self.affine.scale * affine.scale
        is_small = scale.abs() <= _LEAST_SCALE
        are_equal = is_small & ~(scale.square() * self.total_sums()[1] > _LEAST_SCALE**2)
        factors = torch.where(is_small, scale, 1.0).masked_fill_(are_equal, 0.0)
        scale = torch.where(is_small & ~are_equal, scale, rows.affine.scale)
        rows = rows.replaced(affine=Affine(scale, rows.affine.shift))
        rows._factors = factors
        return rows

    def _mapped(self, affine: Affine) -> Rows:
        scale = self.affine.scale * affine.scale
        shift = torch.addcmul(affine.shift, self.affine.shift, affine.scale)
        if self.stored.dtype == torch.float16 and self.sums is not None:
            # Where all u are 0 any scale is right, and the next row that differs has to fit.
            is_free = (scale.abs() < _LEAST_SCALE) & (self.total_sums()[1] == 0)
            scale = torch.where(is_free, self.affine.scale, scale)
        scale = scale.masked_fill_(scale.abs() < _LEAST_SCALE, _LEAST_SCALE)
        return self.replaced(affine=Affine(scale, shift))

    def with_small_scales_in_u_(self) -> Rows:
        """Returns the rows with scales that have become small multiplied into u, in place; theirs is 1 then.

        Where all rows have become equal, u is 0. It could be anything. But the next rows that differ would be
        stored as large numbers, among which a later batch without spread would no longer make all rows equal.
        """
        if self._factors is None or self.sums is None:
            return self
        multiply_dimensions_(self.stored, self._factors, self.sums)
        scale = torch.where(self._factors == 1, self.affine.scale, 1.0)
        sums = self.sums * torch.stack([self._factors, self._factors.square()])
        return self.replaced(affine=Affine(scale, self.affine.shift), sums=sums)

    def where_finite(self, before: Rows) -> Rows:
        """Returns these rows, in dimensions in which their map holds NaN or inf with that of ``before``."""
        return self.replaced(affine=self.affine.where_finite(before.affine))

    def mapped_in_groups_(self, maps: Affine, group_ids: Tensor, other_map: Affine, undo: Undo) -> Rows:
        """Returns the rows after the maps of their groups, which are written in place.

        Args:
            maps: ``(g + 1, d)`` each, the last of rows of no group.
            group_ids: ``(n,)``, from 0 to g.
            other_map: the last one, ``(d,)`` each.
            undo: records what is overwritten.
        """
        scale, shift = maps.after(self.affine)
        rows = self._mapped(other_map)
        if not self.is_kept_in_range:
            have_one_place = (shift - shift[-1]).abs() <= NO_SPREAD * (1 + shift[-1].abs())
            are_equal = ((scale.abs() <= _LEAST_SCALE) & have_one_place).all(dim=0)
            rows._factors = torch.where(are_equal, 0.0, torch.ones_like(scale[-1]))
        # All rows are read through one map. So u is moved by the map of its group, and by that one's inverse.
        scale, shift = scale / rows.affine.scale, (shift - rows.affine.shift) / rows.affine.scale
        is_spoilt = ~torch.isfinite(scale + shift)
        scale, shift = scale.masked_fill_(is_spoilt, 1.0), shift.masked_fill_(is_spoilt, 0.0)
        for indices, ids in self._rows_of_groups(group_ids, len(scale) - 1):
            u = torch.addcmul(shift[ids], widest(self.stored[indices]), scale[ids])
            rows = rows.written_(indices, u, undo)
        return rows

    def _rows_of_groups(self, group_ids: Tensor, num_groups: int) -> list[tuple[Tensor, Tensor]]:
        """Returns indices and group ids of the rows of groups; of all rows where to find those takes longer.

        To find them the host waits for a GPU. That is worth it once all are more than a part: on an H200 a
        step of a million rows took 20 ms instead of 87.
        """
        at_a_time = rows_at_a_time(self.stored, 8)
        if can_read(group_ids) or (len(group_ids) > at_a_time and not is_tracing()):
            indices = (group_ids < num_groups).nonzero().squeeze(1)
            group_ids = group_ids[indices]
        else:
            indices = torch.arange(len(group_ids), device=group_ids.device)
        return list(zip(indices.split(at_a_time), group_ids.split(at_a_time), strict=True))

    # Storing.

    def with_map_for_first_rows(self, values: Tensor) -> Rows:
        """Returns the rows with a map by which incoming rows ``(k, d)`` are stored.

        In half precision, and once there are sums, the first rows are stored standardized.
        """
        is_standardized = self.sums is not None or self.stored.dtype.itemsize < 4
        is_empty = self.num_rows == 0
        if is_empty is False or len(values) == 0 or not is_standardized:
            return self
        wide, zeros = widest(values), torch.zeros_like(self.affine.shift)
        found = moments(wide) if len(wide) > 1 else Moments(wide[0], zeros)
        # Where the host does not know whether there are rows, it is not worth a sum in every step.
        equal = _rms(found) if is_empty is True else torch.ones_like(zeros)
        affine = self._map_if_standardized(found, equal)
        sums = torch.stack([zeros, zeros])
        if isinstance(is_empty, Tensor):
            affine = Affine(*(torch.where(is_empty, x, y) for x, y in zip(affine, self.affine, strict=True)))
            sums = sums if self.sums is None else self.sums
        return self.replaced(affine=affine, sums=sums)

    def to_store(self, values: Tensor) -> Tensor:
        """Returns u ``(k, d)`` of these rows, in float64; the rows themselves if stored as they came."""
        if self.sums is None:
            return values
        # A CPU divides in three times the time of a product.
        return (widest(values) - self.affine.shift).mul_(self.affine.scale.reciprocal())

    def written_(self, indices: Tensor, u: Tensor, undo: Undo, is_accepted: Tensor | None = None) -> Rows:
        """Writes stored rows u ``(k, d)`` in place, in their dtype, and returns the rows with new sums.

        Args:
            indices: ``(k,)``, where.
            u: the new rows, as they are to be stored.
            undo: records what is overwritten.
            is_accepted: whether the rows are to be stored, a 0-d bool tensor; None: they are.
        """
        dtype = self.stored.dtype
        if dtype == torch.float16:
            # Clamped alone, inf would become the largest number: it becomes NaN.
            u = u.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max) + u * 0
        u = u.to(dtype)
        if is_accepted is not None:
            u = torch.where(is_accepted, u, self.stored.index_select(0, indices))
        before = undo.write_(self.stored, indices, u)  # zeros where there was no row
        if self.sums is None:
            return self
        new = widest(u)
        change = new - before
        changes = [change.sum(dim=0), change.mul_(new.add_(before)).sum(dim=0)]
        return self.replaced(sums=self.sums + torch.stack(changes))

    # Standardizing.

    def is_out_of_range(self) -> Tensor | None:
        """Returns whether rows have to be standardized again, 0-d bool; None where there are no sums.

        Where a row holds inf it would not help.
        """
        if self.sums is None:
            return None
        # A sum over u that is as large goes with a sum over u² that is larger.
        sums = self.total_sums()
        is_out = ((sums > self.num_rows * LARGEST_RMS**2) & (sums < torch.inf)).any()
        if self.stored.dtype == torch.float16:
            # Standardizing makes it at least the fraction itself, so that this does not happen in every step.
            least = _LEAST_FRACTION_OF_FLOAT16 / 16 * _rms(self._moments(sums, self.num_rows))
            is_out = is_out | (self.affine.scale.abs() <= least).any()
        return is_out

    def are_in_range(self) -> bool:
        """Returns whether all rows are finite, and need not be standardized again; on a CPU alone."""
        if self.sums is None or self.stored.dtype == torch.float16:
            return False
        return bool(self.total_sums().numpy().max() <= self.num_rows * LARGEST_RMS**2)

    def have_drifted(self) -> Tensor:
        """Returns whether u has a mean of half of its spread, or a spread far from one, 0-d bool.

        XBN's mean stays, as the batch is stored as rows that have the moments of those that are there. Its
        spread shrinks by √(1 − 1/b) a wrap-around: batches of equal mean and spread have a smaller spread
        together. Moving averages and groups drift faster.
        """
        mean, square = (self.total_sums() / self.num_rows).unbind()
        variance = torch.addcmul(square, mean, mean, value=-1)
        has_spread_of_one = (square <= 4) & ((square >= 0.25) | (variance <= 0))
        # Where there is NaN nothing holds, and what is left of it goes as rows are measured anew.
        return ~((mean.square() <= variance.clamp(min=0) / 4) & has_spread_of_one).all()

    def written_standardized_(self, new: Tensor, as_they_came: AsTheyCame | None = None) -> Rows:
        """Returns the rows, written to a tensor ``(M, d)`` so that u has mean 0 and σ 1.

        Args:
            new: the tensor; it may be the one that holds them.
            as_they_came: rows that have lost digits as they were stored.
        """
        mean, std = self.moments()
        std = std.masked_fill(std <= LARGEST_RMS * _LEAST_SCALE * (1 + mean.abs()), 0.0)
        found = Moments(mean, std)
        # What equal rows are off by is small beside the spread that they had.
        scale, shift = self._map_if_standardized(
            found, equal=torch.maximum(_rms(found), self.affine.scale.abs())
        )
        # Rows that have become equal are zeros.
        factor = (self.affine.scale / scale).masked_fill_(std == 0, 0.0)
        offset = ((self.affine.shift - shift) / scale).masked_fill_(std == 0, 0.0)
        done = 0
        try:
            for part in slices(self.most_rows_here, rows_at_a_time(new, 8)):
                new[part] = self._zero_where_empty(
                    torch.addcmul(offset, widest(self.stored[part]), factor), part
                )
                done = part.stop
            if as_they_came is not None:
                indices, came, is_accepted = as_they_came
                u = ((came.detach() - shift) / scale).to(new.dtype)
                if is_accepted is not None:
                    u = torch.where(is_accepted, u, new.index_select(0, indices))
                new.index_copy_(0, indices, u)
            # Measured and not computed: what they are off by would stay for ever.
            sums = sums_of(new[: self.most_rows_here])
        except BaseException:  # an interrupt, or no memory is left
            for part in slices(done if new is self.stored else 0, 1024):
                before = (widest(new[part]) - offset) / factor
                equal = (mean - self.affine.shift) / self.affine.scale
                before = self._zero_where_empty(torch.where(factor == 0, equal, before), part)
                new[part] = before.to(new.dtype)
            raise
        return self.replaced(stored=new, affine=Affine(scale, shift), sums=sums)

    def _zero_where_empty(self, u: Tensor, part: slice) -> Tensor:
        """Returns a part of u with zeros where there is no row, so that sums are of rows alone."""
        is_row = self.is_row
        return u if is_row is None else torch.where(is_row[part].unsqueeze(1), u, 0.0)

    def _map_if_standardized(self, found: Moments, equal: Tensor) -> Affine:
        """Returns the map to rows of these moments from where they are stored standardized.

        Args:
            found: the moments, ``(d,)`` each.
            equal: the scale of dimensions without spread.
        """
        scale = found.std
        if self.stored.dtype == torch.float16:  # rows may come that differ where all are nearly equal
            scale = torch.maximum(scale, _LEAST_FRACTION_OF_FLOAT16 * _rms(found))
        scale = torch.where(found.std > 0, scale, torch.where(equal > _LEAST_SCALE, equal, 1.0))
        # A row of NaN leaves the map of its dimensions as it is.
        return Affine(scale, found.mean).where_finite(self.affine)


def read_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which rows of another are read: float32, or float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rows_of(values: Tensor, like: Rows, memory_size: int, dtype: torch.dtype) -> Rows:
    """Returns other rows ``(n, d)``, in a tensor of ``memory_size``; in half precision standardized."""
    stored = torch.zeros(memory_size, values.shape[1], dtype=dtype, device=values.device)
    zeros = widest(stored.new_zeros(values.shape[1]))
    empty = type(like)(stored, Affine(zeros + 1, zeros), None, 0, 0, like.holding)
    empty = empty.with_map_for_first_rows(values)
    for part in slices(len(values), rows_at_a_time(values)):
        stored[part] = empty.to_store(values[part]).to(dtype)
    sums = None if empty.sums is None else sums_of(stored[: len(values)])
    return type(like)(stored, empty.affine, sums, len(values), len(values), like.holding)


def plain_rows(values: Tensor) -> Rows:
    """Returns rows ``(n, d)`` that are stored as they are, to be read."""
    zeros = widest(values.new_zeros(values.shape[1]))
    return Rows(values, Affine(zeros + 1, zeros), None, len(values), len(values), Holding())


def _unbiased(count: Tensor | int) -> Tensor | float:
    """Returns n / (n - 1), which makes a variance over n rows unbiased."""
    if isinstance(count, Tensor):
        return widest(count) / (count - 1)  # integers would be divided in float32
    return count / (count - 1) if count > 1 else math.nan


def sums_of(stored: Tensor) -> Tensor:
    """Returns the sums over stored rows u ``(n, d)`` and over u², ``(2, d)`` float64."""
    sums = widest(stored.new_zeros(2, stored.shape[1]))
    for part in stored.split(rows_at_a_time(stored, 8)):
        wide = widest(part)
        sums[0] += wide.sum(dim=0)
        sums[1] += wide.square_().sum(dim=0) if wide is not part else wide.square().sum(dim=0)
    return sums


def _rms(found: Moments) -> Tensor:
    """Returns the root mean square over rows and dimensions, without those that hold NaN."""
    return (found.mean.square() + found.std.square()).nan_to_num_(0, 0, 0).mean().sqrt()
