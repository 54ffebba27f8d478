"""Rows that are stored where they rarely move, with one map from there to where they are now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._dtypes import widest
from .._parts import rows_at_a_time, slices
from ..adapters.affine import Affine
from ..adapters.moments import GroupSums, Moments
from ._groups import mapped_in_groups, maps_of_stored, rows_in_groups
from ._scales import first_map, fitting_scale
from ._sums import Sums

# Stored rows of a larger root mean square are stored anew: float16 ends at 65504, and moments lose digits.
LARGEST_RMS = 64.0
# Below it rows are equal in float32: the scale to a batch from there would overflow.
_LEAST_SIZE = 2.0**-40
# A map that makes rows equal shrinks them by this factor instead, so that rows to come can differ from them.
_LEAST_FACTOR = 2.0**-40
_LEAST_SCALE = 2.0**-125
_LEAST_FACTOR_OF_FLOAT16 = 2.0**-10

Self = TypeVar("Self", bound="Rows")
Overwritten = list[tuple[Tensor, "Tensor | slice", Tensor]]  # tensor, places, what was there


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
    overwritten: Overwritten = field(default_factory=list)
    _maps: dict[torch.dtype, Affine] = field(default_factory=dict, init=False)

    @classmethod
    def empty(
        cls, num_places: int, embedding_size: int, dtype: torch.dtype, device: torch.device | None = None
    ) -> Rows:
        """Returns places without a row yet."""
        return cls.of(torch.zeros(0, embedding_size, device=device), num_places, dtype)

    def restored(self: Self, num_rows: int, **saved: Any) -> Self:
        """Returns rows of a saved state, some of the attributes, in the places of these."""
        return replace(self, num_rows=num_rows, is_due=False, overwritten=[], **saved)

    @classmethod
    def of(cls, values: Tensor, num_places: int, dtype: torch.dtype, *, is_whitened: bool = False) -> Rows:
        """Returns rows ``(n, d)``, stored as they are or whitened, as always in half precision."""
        ones = widest(values.new_ones(values.shape[1]))
        stored = values.new_zeros(num_places, values.shape[1], dtype=dtype)
        rows = cls(stored, len(values), ones, torch.zeros_like(ones), torch.zeros_like(ones))
        if len(values) and (is_whitened or dtype.itemsize < 4):
            rows = replace(rows._beginning_with(values), sums=None)
        for part in slices(len(values), rows_at_a_time(stored)):
            stored[part] = rows.to_store(values[part])
        return rows

    def _beginning_with(self: Self, values: Tensor) -> Self:
        """Returns these rows with mean and σ of ``values`` for shift and scale."""
        scale, shift = first_map(values, self.stored.dtype)
        zeros = torch.zeros_like(shift)
        return replace(self, scale=scale, shift=shift, sums=Sums(zeros, zeros), is_as_stored=False)

    # -- reading ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.num_rows

    @property
    def num_places(self) -> int:
        """M, on all ranks together."""
        return len(self.stored)

    def held(self, places: Tensor) -> tuple[Tensor, Tensor | slice]:
        """Returns where the rows of these places ``(k,)`` are stored here, and which of the k they are."""
        return places, slice(None)

    def to_save(self: Self) -> Self:
        """Returns these rows with sums that the saved state has, to the bit."""
        return self

    def as_saved(self, values: Tensor) -> Tensor:
        """Returns one of the state's tensors of all places, given what is stored of it here."""
        return values

    def as_stored(self, saved: Tensor) -> Tensor:
        """Returns what is stored here, given one of the state's tensors of all places."""
        return saved

    def everywhere(self, places: Tensor) -> Tensor:
        """Returns places ``(k,)`` as all ranks count them, found on any of them; -1 where on none."""
        return places

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
            stored = self.stored[part].to(dtype)
            if not self.is_as_stored:
                room = torch.empty_like(stored) if room is None else room
                stored = torch.addcmul(shift, stored, scale, out=room[: len(stored)])
            yield part, stored

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
        at_a_time, dtype = rows_at_a_time(self.stored), weights.dtype
        if self.num_rows <= at_a_time:
            weights = weights if lengths is None else weights / lengths
            total = weights @ self.stored[: self.num_rows].to(dtype)
            of_weights = weights.sum(dim=1, keepdim=True)
        else:  # a part at a time, as a copy of the weights may not fit
            total = weights.new_zeros(len(weights), self.stored.shape[1])
            of_weights = weights.new_zeros(len(weights), 1)
            for part in slices(self.num_rows, at_a_time):
                own = weights[:, part] if lengths is None else weights[:, part] / lengths[part]
                total.addmm_(own, self.stored[part].to(dtype))
                of_weights += own.sum(dim=1, keepdim=True)
        if self.is_as_stored:
            return total
        # The sum of a ∘ u + b is a ∘ (the sum of u) + b: no row has to be mapped for it.
        scale, shift = self._map(dtype)
        return (total * scale).addcmul_(of_weights, shift)

    # -- moments and maps ------------------------------------------------------------------------------------

    def measured(self: Self) -> Self:
        """Returns these rows with their sums; once measured, rows are to be stored whitened."""
        if self.sums is not None:
            return self
        return replace(self, sums=Sums.of(self.stored[: self.num_rows]), is_due=True)

    def moments(self) -> Moments:
        """Returns the moments of the rows as they are now, two or more, measured; they are not read."""
        num_rows, sums = self._totals()
        mean = sums.first / num_rows
        squares = torch.addcmul(sums.second, sums.first, mean, value=-1)
        squares.mul_(squares > self.noise)
        return self._mapped(Moments(mean, squares.div_(max(num_rows - 1, 1)).sqrt_()))

    def _totals(self) -> tuple[int, Sums]:
        """Returns how many rows there are, and the sums over them."""
        assert self.sums is not None, "to be measured first"
        return self.num_rows, self.sums

    def _mapped(self, of_stored: Moments) -> Moments:
        """Returns the moments of rows as they are now; a spread that rounding makes of equal rows is zero."""
        # Others than rows as they were given are stored at a spread of 1.
        least_std = of_stored.mean.abs().clamp_(min=_LEAST_SIZE if self.is_as_stored else 1)
        least_std.mul_(8 * max(torch.finfo(self.stored.dtype).eps, 1e-8))
        mean, std = of_stored.without_rounding(least_std)
        return Moments(torch.addcmul(self.shift, mean, self.scale), std * self.scale.abs())

    def adapted(self: Self, affine: Affine) -> Self:
        """Returns the rows after a map of all of them."""
        _, sums = self._totals()
        least = _LEAST_FACTOR_OF_FLOAT16 if self.stored.dtype == torch.float16 else _LEAST_FACTOR
        are_equal = affine.scale.abs() < least
        shift = torch.addcmul(affine.shift, self.shift, affine.scale)
        scale = self.scale * affine.scale.masked_fill(are_equal, least)
        noise = torch.where(are_equal, 2 * sums.second, self.noise)
        return replace(self, scale=scale, shift=shift, noise=noise, is_as_stored=False)

    def where_finite(self: Self, before: Rows) -> Self:
        """Returns these rows, in dimensions in which their map holds NaN or inf with that of ``before``.

        A scale stays where a smaller one, after several batches without spread, would have rows overflow.
        """
        scale, shift = Affine(self.scale, self.shift).where_finite(Affine(before.scale, before.shift))
        scale = torch.where(scale.abs() < _LEAST_SCALE, before.scale, scale)
        return replace(self, scale=scale, shift=shift)

    def group_moments(self, slots: Tensor, num_groups: int) -> tuple[Tensor, Moments]:
        """Returns counts ``(g, 1)`` and moments ``(g, d)`` of the rows of every slot ``(n,)`` below g."""
        _, slots, stored = rows_in_groups(self.stored[: self.num_rows], slots, num_groups)
        sums = self._sums_of_groups(stored, slots, num_groups + 1)
        mean, std = (x[:num_groups] for x in sums.moments(self.noise))
        return sums.num_rows[:num_groups], self._mapped(Moments(mean, std))

    def _sums_of_groups(self, stored: Tensor, slots: Tensor, num_slots: int) -> GroupSums:
        return GroupSums.of(stored, slots, num_slots)

    def adapted_in_groups(
        self: Self, slots: Tensor, is_adapted: Tensor, of_group: Affine, of_others: Affine | None
    ) -> Self:
        """Returns the rows after a map of all of them, but the rows of some groups after one of their own.

        The rows of these groups are stored anew.

        Args:
            slots: ``(n,)``, the group of every row in [0, g]; slot g is of no group.
            is_adapted: which of the groups take their map, ``(g, 1)`` bool.
            of_group: maps of the groups, ``(g, d)``.
            of_others: map of all other rows; None: they stay.
        """
        after = self if of_others is None else self.adapted(of_others)
        before_map, after_map = Affine(self.scale, self.shift), Affine(after.scale, after.shift)
        of_stored = maps_of_stored(of_group.after(before_map), after_map, is_adapted)
        places, slots, before = rows_in_groups(self.stored[: self.num_rows], slots, len(is_adapted))
        before = before.clone() if isinstance(places, slice) else before
        self.overwritten.append((self.stored, places, before))
        sums = after.sums
        for part, new in mapped_in_groups(before, slots, of_stored, self.dtype):
            self.stored[part if isinstance(places, slice) else places[part]] = new
            sums = sums and sums.exchanged(new, before[part])
        return replace(after, sums=sums, is_as_stored=False)

    # -- writing ---------------------------------------------------------------------------------------------

    def to_store(self, values: Tensor) -> Tensor:
        """Returns u of rows ``(k, d)``."""
        dtype = self.stored.dtype
        if self.is_as_stored:
            return values.to(dtype)
        stored = (values - self.shift).div_(self.scale)  # in float64
        if dtype == torch.float16:
            stored.clamp_(torch.finfo(dtype).min, torch.finfo(dtype).max)
        return stored.to(dtype)

    def put(self: Self, places: Tensor, values: Tensor, num_rows: int, *, is_whitened: bool) -> Self:
        """Returns these rows with ``values`` ``(k, d)`` at the places ``(k,)``, of which n are occupied then.

        Args:
            is_whitened: the first rows of an empty memory are stored whitened.
        """
        after = replace(self, num_rows=num_rows)
        if self.num_rows == 0 and len(values) and (is_whitened or self.stored.dtype.itemsize < 4):
            after = after._beginning_with(values)
        return after._overwritten_at(places, values)

    def _overwritten_at(self: Self, places: Tensor, values: Tensor) -> Self:
        come, gone = self.to_store(values), self.stored[places]  # zeros where there was no row
        self.overwritten.append((self.stored, places, gone))
        self.stored[places] = come
        return replace(self, sums=self.sums.exchanged(come, gone)) if self.sums else self

    def given(self, values: Tensor) -> Rows:
        """Returns other rows ``(n, d)``, stored as they are, in the place of these."""
        return Rows.of(values, len(self.stored), self.stored.dtype)

    def undo(self) -> None:
        """Writes back what has been overwritten since the last :meth:`settle`."""
        while self.overwritten:
            stored, places, before = self.overwritten.pop()
            stored[places] = before

    def is_out_of_range(self) -> Tensor | None:
        """Returns whether rows have to be stored anew, a 0-d bool tensor; None where sums are not kept."""
        if self.sums is None:
            return None
        is_out = self.sums.second > self.num_rows * LARGEST_RMS**2
        if self.stored.dtype == torch.float16:  # in which what is left of equal rows is not small enough
            is_out |= self.noise != 0
        return is_out.any()

    def settle(self: Self) -> Self:
        """Returns these rows after a step that has succeeded: stored anew, in place, if that is due."""
        self.overwritten.clear()
        if self.is_due and not self.is_as_stored:
            return self.stored_anew()
        return replace(self, is_due=False) if self.is_due else self

    def stored_anew(self: Self) -> Self:
        """Returns these rows, whitened in place: a turn, after which u has mean 0 and σ 1."""
        mean, std = self.measured().moments()
        is_finite = torch.isfinite(mean + std)
        is_spread = is_finite & (std > 0)
        scale = torch.where(is_spread, fitting_scale(mean, std, self.stored.dtype), self.scale)
        shift = torch.where(is_finite, mean, self.shift)
        # Rows that have become equal are zeros, rows with NaN stay.
        zeros, ones = torch.zeros_like(scale), torch.ones_like(scale)
        of_stored = Affine(
            torch.where(is_spread, self.scale / scale, torch.where(is_finite, zeros, ones)),
            torch.where(is_spread, (self.shift - shift) / scale, zeros),
        )
        for part in slices(self.num_rows, rows_at_a_time(self.stored)):
            self.stored[part] = of_stored.map(self.stored[part].to(self.dtype))
        # Measured and not computed: what they are off by would stay for ever.
        measured = replace(self, sums=Sums.of(self.stored[: self.num_rows]), is_as_stored=False, is_due=False)
        return replace(measured, scale=scale, shift=shift, noise=zeros)
