"""Rows that are stored where they never move, with the maps from there to where they are now."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from .._parts import rows_at_a_time
from ._coordinates import Coordinates, Sums
from ._linear_coordinates import LinearCoordinates
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

    def then(self, places: Tensor, stored: Tensor) -> History:
        """From when ``stored`` is written over, at these places."""
        after = History()
        self.next = (places, stored, after)
        return after

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


class Room:
    """Room for rows that replace all others: that of rows which nobody has any more, where there are such.

    New room at every step would cost as much time as what is written there. Copies and pickles have none.
    """

    def __init__(self) -> None:
        self._used: list[tuple[weakref.ref[Tensor], Tensor]] = []

    def taken(self, like: Tensor) -> Tensor:
        """A tensor, whose room is free again when it and all its owners, graphs among them, are gone."""
        free = [room for tensor, room in self._used if tensor() is None]
        room = free[0] if free else torch.empty_like(like)
        tensor = room.detach()
        still_used = [entry for entry in self._used if entry[0]() is not None]
        self._used = [*still_used, (weakref.ref(tensor), room)]
        return tensor

    def __reduce__(self) -> tuple[type[Room], tuple[()]]:
        return Room, ()


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
        coordinates: of both generations.
        history: of what is written over from here on.
        room: for as many rows.
    """

    stored: Tensor
    num_rows: int
    boundary: int
    coordinates: Coordinates
    history: History
    room: Room = field(default_factory=Room)

    @classmethod
    def of(
        cls, rows: Tensor, num_places: int, boundary: int, dtype: torch.dtype, *, is_whitened: bool = False
    ) -> Rows:
        """Rows ``(n, d)``, stored in ``dtype``: as they are, or whitened, as in half precision always."""
        stored = torch.zeros(num_places, rows.shape[1], dtype=dtype, device=rows.device)
        coordinates = Coordinates.beginning(rows, is_whitened, dtype)
        made = cls(stored, len(rows), boundary, coordinates, History())
        for part in made._places_of(0, len(rows)):
            stored[part] = coordinates.to_store(rows[part], dtype)
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
        generations, room = self._to_read(dtype), None
        for part in self._places_of(0, self.num_rows):
            stored = self.stored[part].to(dtype)
            if self.coordinates.is_as_stored:
                yield part, stored
                continue
            if room is None or torch.is_grad_enabled():  # a second derivative needs all of them
                room = torch.empty_like(stored)
            rows = room[: len(stored)]
            for map_, start, stop in generations:
                own = slice(max(start - part.start, 0), max(stop - part.start, 0))
                if map_ is not None and len(stored[own]):
                    map_.map(stored[own], out=rows[own])
            yield part, rows

    def read(self, dtype: torch.dtype) -> Tensor:
        """All rows as they are now, ``(n, d)``, in a tensor of their own."""
        rows = self.stored.new_empty(self.num_rows, self.stored.shape[1], dtype=dtype)
        with torch.no_grad():
            for part, values in self.parts(dtype):
                rows[part] = values
        return rows

    def at(self, places: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows at these places ``(...)`` as they are now, ``(..., d)``."""
        stored = self.stored[places].to(dtype)
        newer, older = (x.map(stored) for x in self.coordinates.maps(dtype))
        return torch.where((places < self.boundary).unsqueeze(-1), newer, older)

    def column(self, dimension: int, places: Tensor, dtype: torch.dtype) -> Tensor:
        """One coordinate of the rows at these places ``(k,)`` as they are now, ``(k,)``."""
        newer, older = (x.column(self.stored, dimension, places) for x in self.coordinates.maps(dtype))
        return torch.where(places < self.boundary, newer, older)

    def weighted_sum(self, weights: Tensor, divisors: Tensor) -> Tensor:
        """``(a, d)``, the sum over j of ``weights[:, j] / divisors[j]`` times row j.

        Of the rows as they were when this object was made, whatever has been stored since.

        Args:
            weights: ``(a, n)``; the sum can be differentiated with respect to them.
            divisors: ``(n,)``.
        """
        total = weights.new_zeros(len(weights), self.stored.shape[1])
        places, then = self._written_over()
        for map_, start, stop in self._to_read(weights.dtype):
            for part in self._places_of(start, stop):
                scaled, stored = weights[:, part] / divisors[part], self.stored[part]
                if torch.is_grad_enabled() or len(places):  # a second derivative may come after the next step
                    stored = stored.clone()
                    within = (part.start <= places) & (places < part.stop)
                    stored[places[within] - part.start] = then[within]
                of_stored = scaled @ stored.to(weights.dtype)
                # The sum of a ∘ u + b is a ∘ (the sum of u) + b: no row has to be mapped for it.
                total = total + (of_stored if map_ is None else map_.of_sums(of_stored, scaled))
        return total

    def _to_read(self, dtype: torch.dtype) -> list[tuple[Affine | Linear | None, int, int]]:
        """First and last place of rows that are read alike, and the map in ``dtype`` by which, if any."""
        if self.coordinates.is_as_stored:
            return [(None, 0, self.num_rows)]
        newer, older = self.coordinates.maps(dtype)
        generations = [(newer, 0, self.boundary), (older, self.boundary, self.num_rows)]
        return [entry for entry in generations if entry[1] < entry[2]]

    def _places_of(self, start: int, stop: int) -> Iterator[slice]:
        at_a_time = rows_at_a_time(self.stored)
        return (slice(first, min(first + at_a_time, stop)) for first in range(start, stop, at_a_time))

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
        coordinates, of_generations = self.coordinates, []
        if coordinates.sums is not None and not coordinates.sums.are_lost():
            return self
        for start, stop in ((0, self.boundary), (self.boundary, self.num_rows)):
            sums = coordinates.sums_of(self.stored[:0])
            # So few that it matters little that they, and their squares, are in float64.
            for part in self.stored[start:stop].split(max(1, rows_at_a_time(self.stored) // 32)):
                sums = sums.plus(coordinates.sums_of(part))
            of_generations.append(sums)
        sums = Sums(*(torch.stack(x) for x in zip(*of_generations, strict=True)))
        return replace(self, coordinates=coordinates._replace(sums=sums))

    def moments(self) -> Moments:
        """Moments of the rows as they are now, of two or more, in float64; they are not read for it."""
        mean, squares = self._joined(*self.coordinates.means_and_squares(self._counts()))
        return self.without_rounding(Moments(mean, (squares / (self.num_rows - 1)).sqrt()))

    def covariance(self) -> Tensor:
        """Covariance ``(d, d)`` of the rows as they are now, two or more, in coordinates with a matrix."""
        assert isinstance(self.coordinates, LinearCoordinates)
        _, scatter = self._joined(*self.coordinates.means_and_scatters(self._counts()))
        return scatter / (self.num_rows - 1)

    def _counts(self) -> Tensor:
        """Numbers of rows of the generations, ``(2, 1)``; 1 where there are none."""
        shift, older = self.coordinates.shift, self.num_rows - self.boundary
        ends = max(self.boundary, 1), max(older, 1)
        # A tensor of the two would make a GPU wait for the host.
        counts = torch.linspace(*ends, 2, dtype=shift.dtype, device=shift.device)
        return counts.unsqueeze(1)

    def _joined(self, means: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of all rows and squares around it, given those of the generations around their own means."""
        if not 0 < self.boundary < self.num_rows:
            alone = int(self.boundary == 0)
            return means[alone], squares[alone]
        (newer, older), share = means, 1 - self.boundary / self.num_rows
        delta = older - newer
        other = delta if squares.ndim == 2 else delta.unsqueeze(1)
        squares = squares.sum(dim=0).addcmul_(delta, other, value=self.boundary * share)
        return newer.add(delta, alpha=share), squares

    def with_matrices(self) -> Rows:
        """In coordinates that mix dimensions."""
        return replace(self, coordinates=LinearCoordinates.of(self.coordinates))

    def without_rounding(self, of_rows: Moments, *, are_rewritten: bool = False) -> Moments:
        """Moments in which a spread of a few rounding errors, or of rows that have become equal, is zero.

        Args:
            are_rewritten: the rows have been stored more than once, and rounded by where they were then.
        """
        (mean, std), coordinates, dtype = of_rows, self.coordinates, self.stored.dtype
        eps = torch.finfo(self.dtype).eps
        least = torch.maximum(coordinates.least_std(dtype)[0], 8 * eps * mean.abs())
        for size, shift in zip(coordinates.size, coordinates.shift, strict=True) if are_rewritten else ():
            least = torch.maximum(least, 2 * torch.finfo(dtype).eps * (size + (mean - shift).abs()))
        return Moments(mean, torch.where(std > least, std, 0.0))

    def bounded(self, affine: Map, of_rows: Moments) -> Map:
        """The map, but the identity where it could take rows of these moments, or scales, out of range."""
        std = torch.maximum(of_rows.std, self.coordinates.size.amax(dim=0))
        return affine.bounded(of_rows.mean, std, self.num_rows, self.dtype)

    def adapted(self, affine: Affine | Linear) -> Rows:
        """The rows after a map of all of them that is :meth:`bounded`."""
        coordinates, dtype = self.coordinates.adapted(affine), self.stored.dtype
        if self.stored.device.type != "cpu":  # which would have to wait to know of any that are spent
            return replace(self, coordinates=coordinates.bounded(dtype))
        after, are_spent = replace(self, coordinates=coordinates), coordinates.are_spent(dtype)
        if not are_spent.any():
            return after
        if isinstance(coordinates, LinearCoordinates):
            return after.renewed()
        stored = self.stored.clone()
        stored[: self.boundary, are_spent[0]] = 0.0
        stored[self.boundary :, are_spent[1]] = 0.0
        return replace(after, stored=stored, coordinates=coordinates.renewed(are_spent), history=History())

    # -- writing ---------------------------------------------------------------------------------------------

    def put(self, rows: Tensor, *, is_whitened: bool, batch: Tensor | None = None) -> Rows:
        """With rows ``(b, d)``, at most M, behind the newest one; when the places are full from the first on.

        Args:
            is_whitened: a generation that begins has the batch's moments for its origin. Else it stores rows
                as they are, unless in half precision.
            batch: which these rows are part of; default: all of it.
        """
        after, dtype = self, self.stored.dtype
        to_come = rows
        while len(to_come):
            if after.num_rows == 0 or after.boundary == len(after.stored):
                begun = type(self.coordinates).beginning(rows if batch is None else batch, is_whitened, dtype)
                after = replace(after, coordinates=after.coordinates.after_turn(begun), boundary=0)
            room = min(len(after.stored) - after.boundary, rows_at_a_time(self.stored))
            come, to_come = to_come.tensor_split([room])
            after = after._put(after.coordinates.to_store(come, dtype))
        return after

    def _put(self, come: Tensor) -> Rows:
        """With stored rows ``(k, d)`` in the next k places of the newer generation."""
        boundary = self.boundary + len(come)
        places = torch.arange(self.boundary, boundary, device=come.device)
        before = self.stored[self.boundary : boundary].clone()
        history = self.history.then(places, before)
        self.stored[self.boundary : boundary] = come
        num_rows, gone = max(self.num_rows, boundary), before
        if num_rows > self.num_rows:  # behind the rows may be some that do not count
            gone = before.clone()
            gone[max(self.num_rows - self.boundary, 0) :] = 0
        coordinates = self.coordinates.with_rows(come, gone)
        return replace(self, num_rows=num_rows, boundary=boundary, coordinates=coordinates, history=history)

    def put_at(self, places: Tensor, rows: Tensor) -> Rows:
        """With rows ``(k, d)`` in the place of others, at distinct places ``(k,)``.

        In the coordinates of the generation that the place belongs to.
        """
        is_newer, dtype = places < self.boundary, self.stored.dtype
        newer, older = (self.coordinates.to_store(rows, dtype, generation) for generation in (0, 1))
        come, gone = torch.where(is_newer.unsqueeze(1), newer, older), self.stored[places]
        coordinates = self.coordinates.with_replaced(come, gone, is_newer)
        return replace(self.written(places, come), coordinates=coordinates)

    def written(self, places: Tensor, stored: Tensor) -> Rows:
        """With ``stored`` ``(k, d)`` at the places ``(k,)``, whatever that makes of the sums."""
        history = self.history.then(places, self.stored[places])
        self.stored[places] = stored
        return replace(self, history=history)

    def replaced(self, write: Callable[[Tensor], object]) -> Rows:
        """With all n rows stored anew, whatever that makes of the sums; these rows stay as they are.

        Args:
            write: called with a tensor ``(n, d)`` to write them to.
        """
        stored = self.room.taken(self.stored)
        write(stored[: self.num_rows])
        stored[self.num_rows :] = self.stored[self.num_rows :]
        return replace(self, stored=stored, history=History())

    def given(self, rows: Tensor, *, is_whitened: bool = False) -> Rows:
        """With other rows ``(n, d)`` in their places, in coordinates that begin with them."""
        num_places, dtype = len(self.stored), self.stored.dtype
        return Rows.of(rows, num_places, self.boundary, dtype, is_whitened=is_whitened)

    def renewed(self, *, is_whitened: bool = False) -> Rows:
        """The same rows, stored anew in coordinates that begin with them."""
        return self.given(self.read(self.dtype), is_whitened=is_whitened)

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
