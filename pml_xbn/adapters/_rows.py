"""Rows that are stored where they never move, with the maps from there to where they are now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from .._parts import rows_at_a_time
from ._generation import Generation
from ._linear_generation import LinearGeneration
from .affine import Affine
from .linear import Linear
from .moments import Moments

Map = TypeVar("Map", Affine, Linear)


class History:
    """What is written over from a moment on, which graphs need that have yet to go through their backward.

    Attributes:
        next: the places written to, what was stored there before, and the history from then on.
    """

    def __init__(self) -> None:
        self.next: tuple[Tensor, Tensor, History] | None = None

    def written_over(self) -> list[tuple[Tensor, Tensor]]:
        """Places ``(k,)`` and what was stored there, ``(k, d)``, in the order of the writing."""
        step, entries = self.next, []
        while step is not None:
            places, stored, later = step
            entries.append((places, stored))
            step = later.next
        return entries

    def put_back(self, stored: Tensor) -> None:
        """Writes to ``stored``, ``(M, d)`` as it is now, what was there at the beginning."""
        for places, before in reversed(self.written_over()):
            stored[places] = before


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a memory, stored in the coordinates of two generations.

    An adaptation that is the same map for all rows changes the coordinates and touches no row. The newer
    generation are the rows before ``boundary``, which have been stored since the queue began from its first
    place again; the older one are those from there on. An object of this class does not change, but the rows
    that it shares with later ones are written in place: :meth:`take_back` undoes that.

    Attributes:
        stored: u, ``(M, d)``; zeros where there is no row.
        num_rows: n, how many of the M places hold a row; the first ones.
        boundary: number of rows of the newer generation.
        newer, older: coordinates of the generations.
        history: of what is written over from here on.
    """

    stored: Tensor
    num_rows: int
    boundary: int
    newer: Generation
    older: Generation
    history: History

    @classmethod
    def of(cls, rows: Tensor, num_places: int, boundary: int, dtype: torch.dtype) -> Rows:
        """Rows ``(n, d)``, stored in ``dtype``: as they are, or in half precision whitened."""
        stored = torch.zeros(num_places, rows.shape[1], dtype=dtype, device=rows.device)
        generation = Generation.beginning(rows, False, dtype)._replace(sums=None)
        made = cls(stored, len(rows), boundary, generation, generation, History())
        for part in made._places_of(0, len(rows)):
            stored[part] = generation.to_store(rows[part], dtype)
        return made

    # -- reading ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.num_rows

    @property
    def dtype(self) -> torch.dtype:
        """That in which rows are read, unless in a wider one."""
        return torch.promote_types(self.stored.dtype, torch.float32)

    def parts(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """The rows as they are now, in order; the tensor of one part may be overwritten by the next."""
        # A second derivative needs all of them.
        buffer = None if torch.is_grad_enabled() else self._room_for_part(dtype)
        for generation, start, stop in self._to_read():
            in_dtype = generation.to(dtype)
            for part in self._places_of(start, stop):
                out = None if buffer is None else buffer[: part.stop - part.start]
                yield part, in_dtype.read(self.stored[part], out)

    def read(self, dtype: torch.dtype) -> Tensor:
        """All rows as they are now, ``(n, d)``, in a tensor of their own."""
        rows = self.stored.new_empty(self.num_rows, self.stored.shape[1], dtype=dtype)
        with torch.no_grad():
            for part, values in self.parts(dtype):
                rows[part] = values
        return rows

    def at(self, places: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows at these places ``(...)`` as they are now, ``(..., d)``."""
        return self._read_at(places, self.stored[places], dtype)

    def column(self, dimension: int, dtype: torch.dtype) -> Tensor:
        """One coordinate of all rows as they are now, ``(n,)``."""
        stored = self.stored[: self.num_rows]
        newer, older = (g.to(dtype).column(stored, dimension) for g in (self.newer, self.older))
        return torch.where(torch.arange(len(stored), device=stored.device) < self.boundary, newer, older)

    def weighted_sum(self, weights: Tensor, divisors: Tensor) -> Tensor:
        """``(a, d)``, the sum over j of ``weights[:, j] / divisors[j]`` times row j.

        Of the rows as they were when this object was made, whatever has been stored since.

        Args:
            weights: ``(a, n)``; the sum can be differentiated with respect to them.
            divisors: ``(n,)``.
        """
        total = weights.new_zeros(len(weights), self.stored.shape[1])
        places, then = self._written_over()
        for generation, start, stop in self._to_read():
            # The sum of a ∘ u + b is a ∘ (the sum of u) + b: no row has to be mapped for it.
            of_stored, shares = torch.zeros_like(total), torch.zeros_like(total[:, :1])
            for part in self._places_of(start, stop):
                scaled, stored = weights[:, part] / divisors[part], self.stored[part]
                if torch.is_grad_enabled() or len(places):  # a second derivative may come after the next step
                    stored = stored.clone()
                    within = (part.start <= places) & (places < part.stop)
                    stored[places[within] - part.start] = then[within]
                of_stored = of_stored.addmm(scaled, stored.to(weights.dtype))
                if not generation.is_as_stored:
                    shares = shares + scaled.sum(dim=1, keepdim=True)
            if generation.is_as_stored:
                total = total + of_stored
            else:
                total = total + generation.to(weights.dtype).of_sums(of_stored, shares)
        return total

    def _read_at(self, places: Tensor, stored: Tensor, dtype: torch.dtype) -> Tensor:
        newer, older = (generation.to(dtype).read(stored) for generation in (self.newer, self.older))
        return torch.where((places < self.boundary).unsqueeze(-1), newer, older)

    def _generations(self) -> list[tuple[Generation, int, int]]:
        return [(self.newer, 0, self.boundary), (self.older, self.boundary, self.num_rows)]

    def _to_read(self) -> list[tuple[Generation, int, int]]:
        """Generations that are read alike, with the first and the last of their places."""
        if self.newer.is_as_stored and self.older.is_as_stored:
            return [(self.newer, 0, self.num_rows)]
        return [entry for entry in self._generations() if entry[1] < entry[2]]

    def _places_of(self, start: int, stop: int) -> Iterator[slice]:
        at_a_time = rows_at_a_time(self.stored)
        return (slice(first, min(first + at_a_time, stop)) for first in range(start, stop, at_a_time))

    def _room_for_part(self, dtype: torch.dtype) -> Tensor:
        return torch.empty_like(self.stored[: rows_at_a_time(self.stored)], dtype=dtype)

    def _written_over(self) -> tuple[Tensor, Tensor]:
        """Places ``(k,)`` of rows that were written over since, and what was stored there, ``(k, d)``."""
        written = self.history.written_over()
        if not written:
            return self.stored.new_zeros(0, dtype=torch.int64), self.stored[:0]
        places, stored = (torch.cat(parts) for parts in zip(*written, strict=True))
        # A place that was written to many times first lost what was there.
        distinct, which = places.unique(return_inverse=True)
        order = torch.arange(len(places), device=places.device)
        first = torch.zeros_like(distinct).scatter_reduce(0, which, order, "amin", include_self=False)
        was_row = distinct < self.num_rows
        return distinct[was_row], stored[first[was_row]]

    # -- moments and adaptation ------------------------------------------------------------------------------

    def measured(self) -> Rows:
        """These rows with the sums that moments follow from, for which they have to be read if unknown."""
        generations = []
        for generation, start, stop in self._generations():
            if generation.sums is None or generation.sums.are_lost():
                sums = generation.sums_of(self.stored[:0])
                for part in self._places_of(start, stop):
                    sums = sums.plus(generation.sums_of(self.stored[part]))
                generation = generation._replace(sums=sums)
            generations.append(generation)
        return replace(self, newer=generations[0], older=generations[1])

    def moments(self) -> Moments:
        """Moments of the rows as they are now, of two or more, in float64; they are not read for it."""
        parts = [
            (stop - start, *generation.mean_and_squares(stop - start))
            for generation, start, stop in self._generations()
            if stop > start
        ]
        count, mean, squares = parts[0]
        for other_count, other_mean, other_squares in parts[1:]:
            delta, share = other_mean - mean, other_count / (count + other_count)
            mean = mean.add(delta, alpha=share)
            squares = (squares + other_squares).addcmul(delta, delta, value=count * share)
        return self.without_rounding(Moments(mean, (squares / (self.num_rows - 1)).sqrt()))

    def covariance(self) -> Tensor:
        """Covariance ``(d, d)`` of the rows as they are now, two or more, in coordinates with a matrix."""
        parts = []
        for generation, start, stop in self._generations():
            if stop > start:
                assert isinstance(generation, LinearGeneration)
                parts.append((stop - start, *generation.mean_and_scatter(stop - start)))
        mean = torch.stack([count * own_mean for count, own_mean, _ in parts]).sum(dim=0) / self.num_rows
        between = [count * torch.outer(own - mean, own - mean) for count, own, _ in parts]
        scatter = torch.stack([*between, *(within for _, _, within in parts)]).sum(dim=0)
        return scatter / (self.num_rows - 1)

    def with_matrices(self) -> Rows:
        """In coordinates that mix dimensions."""
        return replace(self, newer=LinearGeneration.of(self.newer), older=LinearGeneration.of(self.older))

    def without_rounding(self, of_rows: Moments, *, are_rewritten: bool = False) -> Moments:
        """Moments in which a spread of a few rounding errors, or of rows that have become equal, is zero.

        Args:
            are_rewritten: the rows have been stored more than once, and rounded by where they were then.
        """
        mean, std = of_rows
        eps = torch.finfo(self.dtype).eps
        least = torch.maximum(self.newer.least_std(self.stored.dtype), 8 * eps * mean.abs())
        for generation in (self.newer, self.older) if are_rewritten else ():
            reach = generation.size + (mean - generation.shift).abs()
            least = torch.maximum(least, 2 * torch.finfo(self.stored.dtype).eps * reach)
        return Moments(mean, torch.where(std > least, std, 0.0))

    def bounded(self, affine: Map, of_rows: Moments) -> Map:
        """The map, but the identity where it could take rows of these moments, or scales, out of range."""
        mean, std = of_rows
        for generation in (self.newer, self.older):
            std = torch.maximum(std, generation.size)
        return affine.bounded(mean, std, self.num_rows, self.dtype)

    def adapted(self, affine: Affine | Linear) -> Rows:
        """The rows after a map of all of them that is :meth:`bounded`."""
        newer, older = (g.adapted(affine) for g in (self.newer, self.older))
        if self.stored.device.type != "cpu":  # which would have to wait to know of any that is spent
            newer, older = (g.bounded(self.stored.dtype) for g in (newer, older))
            return replace(self, newer=newer, older=older)
        after = replace(self, newer=newer, older=older)
        is_spent = [g.is_spent(self.stored.dtype) for g in (newer, older)]
        if not torch.stack(is_spent).any():
            return after
        if isinstance(newer, LinearGeneration):
            return after.given(after.read(self.dtype))
        stored = self.stored.clone()
        stored[: self.boundary, is_spent[0]] = 0.0
        stored[self.boundary :, is_spent[1]] = 0.0
        newer, older = newer.renewed(is_spent[0]), older.renewed(is_spent[1])
        return replace(after, stored=stored, newer=newer, older=older, history=History())

    # -- writing ---------------------------------------------------------------------------------------------

    def put(self, rows: Tensor, *, is_whitened: bool) -> Rows:
        """With rows ``(b, d)``, at most M, behind the newest one; when the places are full from the first on.

        Args:
            is_whitened: a generation that begins has these rows' moments for its origin. Else it stores them
                as they are, unless in half precision.
        """
        after, dtype = self, self.stored.dtype
        to_come = rows
        while len(to_come):
            if after.num_rows == 0 or after.boundary == len(after.stored):
                generation = type(self.newer).beginning(rows, is_whitened, dtype)
                after = replace(after, newer=generation, older=after.newer, boundary=0)
            room = min(len(after.stored) - after.boundary, rows_at_a_time(self.stored))
            come, to_come = to_come.tensor_split([room])
            after = after._put(after.newer.to_store(come, dtype))
        return after

    def _put(self, come: Tensor) -> Rows:
        """With stored rows ``(k, d)`` in the next k places of the newer generation."""
        places = torch.arange(self.boundary, self.boundary + len(come), device=come.device)
        gone = self.stored[self.boundary : min(self.boundary + len(come), self.num_rows)]
        newer, older = self.newer.with_rows(come), self.older.with_rows(gone, -1)
        boundary = self.boundary + len(come)
        return replace(
            self.written(places, come),
            num_rows=max(self.num_rows, boundary),
            boundary=boundary,
            newer=newer,
            older=older,
        )

    def written(self, places: Tensor, stored: Tensor) -> Rows:
        """With ``stored`` ``(k, d)`` at the places ``(k,)``, whatever that makes of the sums."""
        after = History()
        self.history.next = (places, self.stored[places], after)
        self.stored[places] = stored
        return replace(self, history=after)

    def replaced(self, stored: Tensor) -> Rows:
        """With all n rows stored anew, ``(n, d)``, whatever that makes of the sums; nothing is written to."""
        if len(stored) < len(self.stored):
            stored = torch.cat([stored, self.stored[len(stored) :]])
        return replace(self, stored=stored, history=History())

    def given(self, rows: Tensor) -> Rows:
        """With other rows ``(n, d)`` in their places, in coordinates that begin with them."""
        return Rows.of(rows, len(self.stored), self.boundary, self.stored.dtype)

    def first(self, num_rows: int) -> Rows:
        """Only the first of these rows; the others may be counted in again."""
        return replace(self, num_rows=num_rows)

    def take_back(self) -> None:
        """Undoes what has been written in place since this object was made."""
        self.history.put_back(self.stored)
        self.history.next = None

    def as_they_were(self, *, copy: bool = False) -> Rows:
        """These rows without what a step that is under way has written; itself unless that is something.

        Args:
            copy: a copy in any case.
        """
        if self.history.next is None and not copy:
            return self
        stored = self.stored.clone()
        self.history.put_back(stored)
        return replace(self, stored=stored, history=History())
