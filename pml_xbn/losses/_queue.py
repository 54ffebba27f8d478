"""The queue of a memory: its rows, their labels, and where the next ones go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._dtypes import at_least_float32
from ..adapters._coordinates import Coordinates, Sums
from ..adapters._linear_coordinates import LinearCoordinates
from ..adapters._rows import History, Rows

_VERSION = 3  # of the state; 1 is that of version 0.1.0, 2 knew no samples, see _checkpoint.py


class Contents(NamedTuple):
    """What a memory holds. Steps make new ones, of which the one that succeeds is assigned to the queue."""

    rows: Rows
    labels: Tensor  # (M,), int64
    newest: Tensor | None  # places of the rows stored last, (b,)
    num_calls: int
    ids: Tensor | None = None  # samples of the rows, (M,) int64, -1 where there is none; None: nowhere
    num_replaced: int = 0  # rows that have taken the place of their sample's, since all were stored anew

    @property
    def position(self) -> int:
        """The place of the next row."""
        return self.rows.boundary % len(self.labels)

    def put(
        self,
        rows: Tensor,
        labels: Tensor,
        *,
        is_whitened: bool,
        ids: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Contents:
        """With rows ``(b, d)``, at most M, in the place of the oldest ones; see :meth:`Rows.put`."""
        places = torch.arange(self.position, self.position + len(rows), device=rows.device)
        places %= len(self.labels)
        new_labels, new_ids = self.labels.clone(), self.ids
        new_labels[places] = labels
        if new_ids is not None or ids is not None:
            new_ids = torch.full_like(new_labels, -1) if new_ids is None else new_ids.clone()
            new_ids[places] = -1 if ids is None else ids
        new_rows = self.rows.put(rows, is_whitened=is_whitened, batch=batch)
        return self._replace(rows=new_rows, labels=new_labels, newest=places, ids=new_ids)

    def to(self, move: Callable[[Tensor], Tensor]) -> Contents:
        """The same contents in tensors that ``move`` returns, which may be the ones that it is given."""
        rows, old = self.rows, self.rows.coordinates
        scale, shift, origin = map(move, old[:3])
        sums = old.sums and Sums(*map(move, old.sums))
        coordinates = old._replace(scale=scale, shift=shift, origin=origin, sums=sums)
        stored = move(rows.stored)
        # What is written to tensors that have stayed, graphs of earlier steps have to hear of.
        history = rows.history if stored is rows.stored else History()
        moved = Rows(stored, rows.num_rows, rows.boundary, coordinates, history)
        newest, ids = (None if x is None else move(x) for x in (self.newest, self.ids))
        return self._replace(rows=moved, labels=move(self.labels), newest=newest, ids=ids)


class Queue(nn.Module):
    """Holds the contents of a memory, reads and writes their state, and moves them between devices.

    Attributes:
        contents: replaced, in one assignment, by every step that succeeds.
    """

    contents: Contents

    def __init__(self, memory_size: int, embedding_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.has_matrices = False  # the coordinates mix dimensions
        # The value that was read last, of which contents, and a copy that nobody else has.
        self._read: tuple[Contents, Tensor, Tensor] | None = None
        with torch.inference_mode(False):
            labels = torch.zeros(memory_size, dtype=torch.int64)
            rows = Rows.of(torch.zeros(0, embedding_size), memory_size, 0, dtype)
        self.contents = Contents(rows, labels, None, 0)

    def reset(self, memory_size: int, embedding_size: int, dtype: torch.dtype) -> None:
        """Empties the queue, to store so many rows of this size and dtype. Calls stay counted."""
        self.dtype = dtype
        old, self._read = self.contents, None
        with torch.inference_mode(False):
            rows = Rows.of(self.new_zeros(0).new_zeros(0, embedding_size), memory_size, 0, self.dtype)
            labels = old.labels.new_zeros(memory_size)
            self.contents = Contents(rows, labels, old.newest, old.num_calls)

    def new_zeros(self, num_rows: int) -> Tensor:
        """Rows of zeros, as they are read."""
        stored = self.contents.rows.stored
        return at_least_float32(stored.new_zeros(num_rows, stored.shape[1]))

    # -- the rows as a value ---------------------------------------------------------------------------------

    def read(self) -> Tensor:
        """The rows as they are now, ``(M, d)``, with zeros behind them."""
        contents = self.settled()
        if self._read is None:
            with torch.inference_mode(False):
                values = self.new_zeros(len(contents.labels))
                values[: len(contents.rows)] = contents.rows.as_they_were().read(values.dtype)
                self._read = contents, values, values.clone()
        return self._read[1]

    def resume_at(self, position: int, num_rows: int) -> None:
        """The next row goes to the place ``position``, and the first ``num_rows`` rows count."""
        contents = self.settled()
        if (position, num_rows) != (contents.position, len(contents.rows)):
            stored = contents.rows.first(len(contents.labels))
            self._give(stored.read(stored.dtype), position, num_rows)

    def assign(self, values: Tensor) -> None:
        """Gives the queue other rows ``(M, d)``, in coordinates that begin with them.

        Raises:
            ValueError: another shape.
        """
        contents = self.contents
        if values.shape != contents.rows.stored.shape:
            raise ValueError(
                f"embedding_memory of shape {tuple(values.shape)}: assign {tuple(contents.rows.stored.shape)}"
            )
        self._give(values, contents.rows.boundary, len(contents.rows))

    def _give(self, values: Tensor, boundary: int, num_rows: int) -> None:
        with torch.inference_mode(False):
            values = values.detach().clone()
            # What is behind the rows may be counted in later, but is to have no say in their coordinates.
            given = values[:num_rows] if num_rows else values
            rows = Rows.of(given, len(values), boundary, self.dtype)
            rows.stored[len(given) :] = rows.coordinates.to_store(values[len(given) :], self.dtype)
            labels, ids = self.contents.labels.to(values.device), self.contents.ids
            if ids is not None:
                ids = ids.to(values.device, copy=True)
                ids[num_rows:] = -1
            self.contents = self.contents._replace(rows=rows.first(num_rows), labels=labels, ids=ids)

    def settled(self) -> Contents:
        """The contents, once what somebody has written to the value that was read is assigned."""
        if self._read is not None:
            contents, values, before = self._read
            if contents is not self.contents:
                self._read = None
            elif not _are_same(values, before):
                self.assign(values)
                with torch.inference_mode(False):
                    # Who goes on writing to the value finds in it what is stored.
                    rows = self.contents.rows
                    values[: len(rows)] = rows.read(values.dtype)
                    self._read = self.contents, values, values.clone()
        return self.contents

    def on(self, device: torch.device) -> Contents:
        """The contents to work with, on this device and outside of ``inference_mode``."""
        contents = self.settled()
        stored = contents.rows.stored
        if stored.device != device or stored.is_inference():
            with torch.inference_mode(False):
                self.contents = contents.to(lambda x: _copy_on(device, x))
        self._read = None
        return self.contents

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any) -> Queue:
        """Goes with the module to its device. The rows keep their dtype: ``half()`` is for the model."""

        def move(x: Tensor) -> Tensor:
            device = fn(x.new_empty(0, dtype=torch.float32)).device
            if device.type == "mps":
                return _copy_on(device, x)
            moved = fn(x)
            return moved if moved.dtype == x.dtype else x.to(moved.device)

        self.contents = self.settled().to(move)
        self._read = None
        return self

    # -- state -----------------------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        contents = self.settled()
        # Who asks for the state is to find it unchanged when the run has gone on.
        rows = contents.rows.with_matrices() if self.has_matrices else contents.rows
        # While a step is under way, it would have to undo it.
        if rows is not contents.rows and contents.rows.history.next is None:
            self.contents = contents._replace(rows=rows)
        rows = rows if keep_vars else rows.as_they_were(copy=True)
        labels, ids = contents.labels, contents.ids
        if not keep_vars:
            labels, ids = labels.clone(), None if ids is None else ids.clone()
        contents = contents._replace(rows=rows, labels=labels, ids=ids)
        state = state_of(contents, has_matrices=self.has_matrices)
        destination.update({prefix + name: value for name, value in state.items()})

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        *_: Any,
    ) -> None:
        names = state_of(self.contents, has_matrices=self.has_matrices).keys()
        missing = [prefix + name for name in names if prefix + name not in state_dict]
        if missing:
            missing_keys.extend(missing)
            return
        device = self.contents.labels.device
        with torch.inference_mode(False):
            state = {name: _copy_on(device, state_dict[prefix + name]) for name in names}
            self.contents = _contents_of(state, self.dtype, has_matrices=self.has_matrices)
        self._read = None

    def __getstate__(self) -> dict[str, Any]:
        self.settled()
        return {**self.__dict__, "_read": None}


def _copy_on(device: torch.device, values: Tensor) -> Tensor:
    """A copy on the device, in float32 if it knows no float64."""
    is_too_wide = device.type == "mps" and values.dtype == torch.float64
    return (values.float() if is_too_wide else values).to(device, copy=True)


def _are_same(values: Tensor, others: Tensor) -> bool:
    """Whether they are equal, NaN to NaN."""
    return bool(((values == others) | (values.isnan() & others.isnan())).all())


def state_of(contents: Contents, *, has_matrices: bool) -> dict[str, Tensor]:
    """Tensors of fixed shape that hold everything."""
    rows = contents.rows.with_matrices() if has_matrices else contents.rows
    coordinates = rows.coordinates
    sums = coordinates.sums or coordinates.sums_of(rows.stored.new_zeros(2, 0, rows.stored.shape[1]))
    numbers = [
        _VERSION,
        contents.num_calls,
        rows.num_rows,
        rows.boundary,
        *[coordinates.is_as_stored] * 2,  # one for each generation
        *[coordinates.sums is not None] * 2,
        contents.num_replaced,
    ]
    ids = torch.full_like(contents.labels, -1) if contents.ids is None else contents.ids
    return {
        "rows": rows.stored,
        "labels": contents.labels,
        "ids": ids,
        "coordinates": torch.cat([_as_rows(x) for x in coordinates[:3]], dim=1),
        "sums": torch.cat([_as_rows(x) for x in sums], dim=1),
        "numbers": torch.tensor(numbers),
    }


def _as_rows(values: Tensor) -> Tensor:
    """``(2, d)`` as ``(2, 1, d)``."""
    return values.reshape(2, -1, values.shape[-1])


def _contents_of(state: dict[str, Tensor], dtype: torch.dtype, *, has_matrices: bool) -> Contents:
    """The contents that have this state."""
    _, num_calls, num_rows, boundary, *flags, num_replaced = state["numbers"].tolist()
    stored, vectors, sums = state["rows"], state["coordinates"], state["sums"]
    coordinates = (LinearCoordinates if has_matrices else Coordinates)(
        vectors[:, :-2] if has_matrices else vectors[:, 0],
        vectors[:, -2],
        vectors[:, -1],
        is_as_stored=all(flags[:2]),
        sums=Sums(sums[:, 0], sums[:, 1:] if has_matrices else sums[:, 1]) if all(flags[2:]) else None,
    )
    rows = Rows(stored, num_rows, boundary, coordinates, History())
    if stored.dtype != dtype and dtype.itemsize < 4:  # of whose range the coordinates may know nothing
        rows = Rows.of(rows.read(rows.dtype), len(stored), boundary, dtype)
    rows, ids = replace(rows, stored=rows.stored.to(dtype)), state["ids"]
    known_ids = ids if (ids >= 0).any() else None
    return Contents(rows, state["labels"], None, num_calls, known_ids, num_replaced)
