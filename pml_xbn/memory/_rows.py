"""Rows that are stored where they rarely move, with one map from there to where they are now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._dtypes import widest
from .._parts import rows_at_a_time, slices
from ..adapters.affine import Affine
from ..adapters.moments import Moments, moments
from ._sums import Sums, in_groups, sums_of, sums_of_groups

# Stored rows of a larger root mean square are stored anew: float16 ends at 65504, and moments lose digits.
_LARGEST_RMS = 64.0
# Rows of a smaller spread are equal, and no scale is smaller, so that rows to come can differ from them.
_LEAST_SCALE = 2.0**-40
# In float16 rows to come fit if a scale shrinks by no more at once, and is such a share of the rows' RMS.
_LEAST_FACTOR_OF_FLOAT16 = 2.0**-10
_LEAST_SHARE_OF_FLOAT16 = 2.0**-8

Self = TypeVar("Self", bound="Rows")


@dataclass(frozen=True, eq=False)
class Rows:
    r"""The rows of a memory, :math:`\hat z = a \circ u + b` of stored rows u with one map (a, b).

    A map of all rows composes with (a, b) and touches no row. What is written to ``stored`` in place is noted
    in ``overwritten``, so that a failed step can be undone; :meth:`settle` forgets it.

    Attributes:
        stored: u, ``(M, d)``; zeros where there is no row.
        num_rows: n, how many of the M places hold a row: the first ones.
        scale: a, ``(d,)`` float64, never zero.
        shift: b, ``(d,)`` float64.
        noise: ``(d,)`` float64: sum of the squares of u that is left of rows which have been made equal.
        sums: over the stored rows, which moments follow from; None: not measured.
        is_as_stored: a = 1 and b = 0.
        is_due: the rows are to be stored anew by :meth:`settle`.
    """

    stored: Tensor
    num_rows: int
    scale: Tensor
    shift: Tensor
    noise: Tensor
    sums: Sums | None = None
    is_as_stored: bool = True
    is_due: bool = False
    overwritten: list[tuple[Tensor, Tensor | slice, Tensor]] = field(default_factory=list)
    _maps: dict[torch.dtype, Affine] = field(default_factory=dict, init=False)

    @classmethod
    def empty(
        cls, num_places: int, embedding_size: int, dtype: torch.dtype, device: torch.device | None = None
    ) -> Rows:
        """Returns places without a row yet."""
        stored = torch.zeros(num_places, embedding_size, dtype=dtype, device=device)
        zeros = widest(stored.new_zeros(embedding_size))
        return cls(stored, 0, zeros + 1, zeros, zeros)

    @classmethod
    def of(cls, values: Tensor, num_places: int, dtype: torch.dtype) -> Rows:
        """Returns rows ``(n, d)``, stored as they are, in half precision whitened."""
        rows = Rows.empty(num_places, values.shape[1], dtype, values.device)
        if dtype.itemsize < 4:
            rows = replace(rows.beginning_with(values), sums=None)
        for part in slices(len(values), rows_at_a_time(values)):
            rows = rows.put(part, values[part], len(values))
        rows.overwritten.clear()
        return rows

    def replaced_by(self, values: Tensor) -> Rows:
        """Returns other rows ``(n, d)`` in the place of these."""
        return Rows.of(values, len(self.stored), self.stored.dtype)

    def restored(self: Self, num_rows: int, **saved: Any) -> Self:
        """Returns rows of a saved state, some of the attributes, in the places of these."""
        return replace(self, num_rows=num_rows, is_due=False, overwritten=[], **saved)

    def beginning_with(self: Self, values: Tensor) -> Self:
        """Returns these places, empty, to store rows such as ``values`` ``(k, d)`` whitened."""
        if len(values) == 0:
            return self
        wide, zeros = widest(values), torch.zeros_like(self.shift)
        scale, shift = self._whitening(*(moments(wide) if len(wide) > 1 else (wide[0], zeros)))
        return replace(self, scale=scale, shift=shift, sums=(zeros, zeros), is_as_stored=False)

    # -- what is different where ranks hold parts of the rows ------------------------------------------------

    def __len__(self) -> int:
        return self.num_rows

    @property
    def num_places(self) -> int:
        """M, on all ranks together."""
        return len(self.stored)

    @property
    def totals(self) -> Sums:
        """Sums over the stored rows of all ranks."""
        assert self.sums is not None, "to be measured first"
        return self.sums

    def held(self, places: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Returns where the rows of these places ``(k,)`` are stored here, and the k values of these rows."""
        return places, values

    def everywhere(self, places: Tensor) -> Tensor:
        """Returns places ``(k,)`` as all ranks count them, found on any of them; -1 where on none."""
        return places

    def as_saved(self, values: Tensor) -> Tensor:
        """Returns one of the state's tensors of all places, given what is stored of it here."""
        return values

    def as_stored(self, saved: Tensor) -> Tensor:
        """Returns what is stored here, given one of the state's tensors of all places."""
        return saved

    def to_save(self: Self) -> Self:
        """Returns these rows with sums that the saved state has, to the bit."""
        return self

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """That in which rows are read."""
        return torch.float64 if self.stored.dtype == torch.float64 else torch.float32

    def _map(self, dtype: torch.dtype) -> Affine:
        """Returns the map from stored rows to rows as they are now."""
        if dtype not in self._maps:  # both passes of a loss ask for it
            self._maps[dtype] = Affine(self.scale.to(dtype), self.shift.to(dtype))
        return self._maps[dtype]

    def parts(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """Yields the rows as they are now, in order; the tensor of a part may be overwritten by the next."""
        scale, shift = self._map(dtype)
        room: Tensor | None = None
        for part in slices(self.num_rows, rows_at_a_time(self.stored)):
            rows = self.stored[part].to(dtype)
            if not self.is_as_stored:
                room = torch.empty_like(rows) if room is None else room
                rows = torch.addcmul(shift, rows, scale, out=room[: len(rows)])
            yield part, rows

    def read(self, dtype: torch.dtype) -> Tensor:
        """Returns all rows as they are now, ``(n, d)``, in a tensor of their own."""
        rows = self.stored.new_empty(self.num_rows, self.stored.shape[1], dtype=dtype)
        for part, values in self.parts(dtype):
            rows[part] = values
        return rows

    def at(self, places: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the rows at these places ``(k,)`` as they are now, ``(k, d)``."""
        stored = self.stored[places].to(dtype)
        return stored if self.is_as_stored else self._map(dtype).map(stored)

    def weighted_sum(self, weights: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Returns ``(a, d)``, the sum over j of ``weights[:, j]`` times row j, over ``lengths[j]``."""
        dtype = weights.dtype
        if self.num_rows <= rows_at_a_time(self.stored):
            weights = weights if lengths is None else weights / lengths
            total = weights @ self.stored[: self.num_rows].to(dtype)
            weight_sums = weights.sum(dim=1, keepdim=True)
        else:  # a part at a time, as a copy of the weights may not fit
            total = weights.new_zeros(len(weights), self.stored.shape[1])
            weight_sums = weights.new_zeros(len(weights), 1)
            for part in slices(self.num_rows, rows_at_a_time(self.stored)):
                own = weights[:, part] if lengths is None else weights[:, part] / lengths[part]
                total.addmm_(own, self.stored[part].to(dtype))
                weight_sums += own.sum(dim=1, keepdim=True)
        if self.is_as_stored:
            return total
        # The sum of a ∘ u + b is a ∘ (the sum of u) + b: no row has to be mapped for it.
        scale, shift = self._map(dtype)
        return (total * scale).addcmul_(weight_sums, shift)

    # -- moments and maps ------------------------------------------------------------------------------------

    def measured(self: Self) -> Self:
        """Returns these rows with their sums; once measured, rows are to be stored whitened."""
        if self.sums is not None:
            return self
        return replace(self, sums=sums_of(self.stored[: self.num_rows]), is_due=True)

    def moments(self, num_rows: Tensor | int | None = None, sums: Sums | None = None) -> Moments:
        """Returns the moments of the rows as they are now, measured; they are not read.

        Args:
            num_rows: counts of groups of rows ``(g, 1)``, two or more; default all rows.
            sums: over the stored rows of the groups, ``(g, d)`` each; default over all.
        """
        num_rows = len(self) if num_rows is None else num_rows
        first, second = self.totals if sums is None else sums
        mean = first / num_rows
        squares = torch.addcmul(second, first, mean, value=-1)
        # What rounding makes of equal rows is no spread. Others than rows as they were given have one of 1.
        rounding = 8 * max(torch.finfo(self.stored.dtype).eps, 1e-8)
        least = _LEAST_SCALE / rounding if self.is_as_stored else 1.0
        least_squares = torch.add(self.noise, second.clamp(min=num_rows * least**2), alpha=rounding**2)
        std = squares.mul_(squares > least_squares).div_(num_rows - 1).sqrt_()
        return Moments(torch.addcmul(self.shift, mean, self.scale), std.mul_(self.scale.abs()))

    def adapted(self: Self, affine: Affine) -> Self:
        """Returns the rows after a map of all of them."""
        shift = torch.addcmul(affine.shift, self.shift, affine.scale)
        scale = self.scale * affine.scale
        if self.stored.dtype == torch.float16:
            least = (self.scale.abs() * _LEAST_FACTOR_OF_FLOAT16).clamp_(min=_LEAST_SCALE)
            are_equal = scale.abs() < least
            scale = torch.where(are_equal, least, scale)
        else:
            are_equal = scale.abs() < _LEAST_SCALE
            scale.masked_fill_(are_equal, _LEAST_SCALE)
        noise = torch.where(are_equal, 2 * self.totals[1], self.noise)
        return replace(self, scale=scale, shift=shift, noise=noise, is_as_stored=False)

    def where_finite(self: Self, before: Rows) -> Self:
        """Returns these rows, in dimensions in which their map holds NaN or inf with that of ``before``."""
        scale, shift = Affine(self.scale, self.shift).where_finite(Affine(before.scale, before.shift))
        return replace(self, scale=scale, shift=shift)

    def group_moments(self, slots: Tensor, num_groups: int) -> tuple[Tensor, Moments]:
        """Returns counts ``(g, 1)`` and moments ``(g, d)`` of the rows of every slot ``(n,)`` below g."""
        places, slots = in_groups(slots, num_groups)
        num_rows, first, second = (x[:num_groups] for x in self.sums_of_groups(places, slots, num_groups))
        return num_rows, self.moments(num_rows.clamp(min=2), (first, second))

    def sums_of_groups(self, places: Tensor, slots: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
        return sums_of_groups(self.stored, places, slots, num_groups)

    def adapted_in_groups(
        self: Self, slots: Tensor, is_adapted: Tensor, group_maps: Affine, other_map: Affine | None
    ) -> Self:
        """Returns the rows after maps of groups, whose rows are stored anew, and one of all others.

        Arguments as for :meth:`PlainRows.adapted_in_groups`.
        """
        after = replace(self if other_map is None else self.adapted(other_map), is_as_stored=False)
        # From stored rows by the map of their group, and back from where all are read.
        own = group_maps.after(Affine(self.scale, self.shift))
        scale = (own.scale / after.scale).to(self.dtype)
        shift = ((own.shift - after.shift) / after.scale).to(self.dtype)
        is_used = is_adapted & torch.isfinite(scale + shift)
        scale = pad(torch.where(is_used, scale, 1.0), (0, 0, 0, 1), value=1.0)
        shift = pad(torch.where(is_used, shift, 0.0), (0, 0, 0, 1))
        places, slots = in_groups(slots, len(is_adapted))
        at_a_time = rows_at_a_time(self.stored, 8)
        for part, part_slots in zip(places.split(at_a_time), slots.split(at_a_time), strict=True):
            stored = self.stored[part].to(self.dtype)
            after = after._written(part, torch.addcmul(shift[part_slots], stored, scale[part_slots]))
        return after

    # -- writing ---------------------------------------------------------------------------------------------

    def put(self: Self, places: Tensor | slice, values: Tensor, num_rows: int) -> Self:
        """Returns these rows with ``values`` ``(k, d)`` at the places ``(k,)``; n are occupied then."""
        stored = values if self.is_as_stored else (values - self.shift).div_(self.scale)  # in float64
        return replace(self._written(places, stored), num_rows=num_rows)

    def _written(self: Self, places: Tensor | slice, stored: Tensor) -> Self:
        """Writes stored rows ``(k, d)`` in place, in their dtype, and returns the rows with new sums."""
        dtype = self.stored.dtype
        if dtype == torch.float16:
            stored = stored.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
        stored, gone = stored.to(dtype), self.stored[places]  # zeros where there was no row
        self.overwritten.append((self.stored, places, gone))
        self.stored[places] = stored
        if self.sums is None:
            return self
        wide = widest(stored)
        change = wide - gone  # in float64 too, as is the next sum
        first, second = self.sums
        return replace(self, sums=(first + change.sum(dim=0), second + change.mul_(wide + gone).sum(dim=0)))

    def undo(self) -> None:
        """Writes back what has been overwritten since the last :meth:`settle`."""
        while self.overwritten:
            stored, places, before = self.overwritten.pop()
            stored[places] = before

    def is_out_of_range(self) -> Tensor | None:
        """Returns whether rows have to be stored anew, a 0-d bool tensor; None where sums are not kept."""
        if self.sums is None:
            return None
        # A dimension in which rows have been made equal, whose scale is the smallest, is out of range too.
        squares = torch.add(self.totals[1], self.noise, alpha=2.0**40)
        return (squares > len(self) * _LARGEST_RMS**2).any()

    def settle(self: Self) -> Self:
        """Returns these rows after a step that has succeeded: stored anew, in place, if that is due."""
        self.overwritten.clear()
        if not self.is_due:
            return self
        return replace(self, is_due=False) if self.is_as_stored else self.stored_anew()

    def stored_anew(self: Self) -> Self:
        """Returns these rows, whitened in place: a turn, after which u has mean 0 and σ 1."""
        found = self.measured().moments()
        scale, shift = self._whitening(*found)
        # Rows that have become equal are zeros.
        factor = (self.scale / scale).masked_fill_(found.std == 0, 0.0)
        offset = ((self.shift - shift) / scale).masked_fill_(found.std == 0, 0.0)
        stored = self.stored[: self.num_rows]
        for part in stored.split(rows_at_a_time(stored, 8)):
            part.copy_(torch.addcmul(offset, widest(part), factor))
        # Measured and not computed: what they are off by would stay for ever.
        after = replace(self, sums=sums_of(stored), noise=torch.zeros_like(scale))
        return replace(after, scale=scale, shift=shift, is_as_stored=False, is_due=False)

    def _whitening(self, mean: Tensor, std: Tensor) -> Affine:
        """Returns the map to rows of these moments from where they are stored whitened."""
        rms = (mean.square() + std.square()).nan_to_num_(0, 0, 0).mean().sqrt()
        spread = std
        if self.stored.dtype == torch.float16:  # rows may come that differ where all are nearly equal
            spread = torch.maximum(std, _LEAST_SHARE_OF_FLOAT16 * rms)
        otherwise = torch.where(rms > _LEAST_SCALE, rms, 1.0)
        scale = torch.where(std > _LEAST_SCALE, spread, otherwise)
        # A row of NaN leaves the map of its dimensions as it is.
        return Affine(scale, mean).where_finite(Affine(self.scale, self.shift))
