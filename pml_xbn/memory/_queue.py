"""The queue of a memory: its rows, their labels, and where the next ones go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._dtypes import at_least_float32
from ._rows import Rows

_OF_PLACES = ("rows", "labels", "ids")  # the tensors of the state that have an entry of every place
_VERSION = 4  # of the state


class Contents(NamedTuple):
    """What a memory holds; every step makes new ones."""

    rows: Rows
    labels: Tensor  # (M,), int64
    newest: Tensor | None = None  # places of the rows stored last, (b,)
    num_calls: int = 0
    position: int = 0  # place of the next row
    ids: Tensor | None = None  # samples of the rows, (M,) int64, -1 where there is none; None: nowhere
    num_replaced: int = 0  # rows that have taken the place of their sample's, since that made a turn

    @property
    def row_labels(self) -> Tensor:
        """Labels of the occupied rows, ``(n,)``."""
        num_rows = self.rows.num_rows
        return self.labels if num_rows == len(self.labels) else self.labels[:num_rows]

    def put(self, rows: Tensor, labels: Tensor, ids: Tensor | None = None) -> Contents:
        """Returns the contents with rows ``(b, d)``, at most M, in the place of the oldest ones."""
        before, size, end = self.rows, self.rows.num_places, self.position + len(rows)
        places = torch.arange(self.position, end, device=rows.device)
        if end > size:
            places %= size
        new_labels, new_ids = self.labels.index_copy(0, *before.held(places, labels)), self.ids
        if new_ids is not None or ids is not None:
            new_ids = torch.full_like(new_labels, -1) if new_ids is None else new_ids
            ids = torch.full_like(labels, -1) if ids is None else ids
            new_ids = new_ids.index_copy(0, *before.held(places, ids))
        if len(before) == 0 and before.stored.dtype.itemsize < 4:
            before = before.beginning_with(rows)
        new_rows = before.put(places, rows, max(len(before), min(end, size)))
        if end >= size:  # a turn
            new_rows = replace(new_rows, is_due=True)
        return self._replace(
            rows=new_rows, labels=new_labels, newest=places, position=end % size, ids=new_ids
        )

    def on(self, device: torch.device) -> Contents:
        """Returns a copy on a device."""
        moved: dict[str, Any] = {
            name: _copy_on(device, getattr(self.rows, name)) for name in ("stored", "scale", "shift", "noise")
        }
        if self.rows.sums is not None:
            moved["sums"] = tuple(_copy_on(device, x) for x in self.rows.sums)
        newest, ids = (None if x is None else _copy_on(device, x) for x in (self.newest, self.ids))
        labels = _copy_on(device, self.labels)
        return self._replace(rows=replace(self.rows, **moved), labels=labels, newest=newest, ids=ids)


class Queue(nn.Module):
    """Holds the contents of a memory, reads and writes their state, and moves them between devices.

    Attributes:
        contents: replaced by every step.
        dtype: in which rows are stored.
    """

    contents: Contents
    is_in_transaction = False

    def __init__(
        self, memory_size: int, embedding_size: int, dtype: torch.dtype, kind: type[Rows] = Rows
    ) -> None:
        super().__init__()
        self.dtype = dtype
        # The value that was read last, and how often it had been written to.
        self._read: tuple[Tensor, int] | None = None
        with torch.inference_mode(False):
            rows = kind.empty(memory_size, embedding_size, dtype)
            self.contents = Contents(rows, torch.zeros(len(rows.stored), dtype=torch.int64))

    def reset(self, memory_size: int, embedding_size: int, dtype: torch.dtype) -> None:
        """Empties the queue, to store so many rows of this size and dtype. Calls stay counted."""
        self.dtype = dtype
        old, self._read = self.contents, None
        with torch.inference_mode(False):
            rows = type(old.rows).empty(memory_size, embedding_size, dtype, old.labels.device)
            labels = old.labels.new_zeros(len(rows.stored))
        self.contents = Contents(rows, labels, old.newest, old.num_calls)

    # -- the rows as a value ---------------------------------------------------------------------------------

    def read(self) -> Tensor:
        """Returns the rows as they are now, ``(M, d)``, with zeros behind them."""
        rows = self.settled().rows
        if self._read is None:
            with torch.inference_mode(False), torch.no_grad():
                values = at_least_float32(torch.zeros_like(rows.stored))
                values[: rows.num_rows] = rows.read(values.dtype)
            self._read = values, values._version
        return self._read[0]

    def settled(self) -> Contents:
        """Returns the contents, once what somebody has written to the value that was read is assigned."""
        if self._read is not None and self._read[0]._version != self._read[1]:
            values = self._read[0]
            self.assign(values)
            self._read = values, values._version  # which stays the value that is read
        return self.contents

    def assign(self, values: Tensor, position: int | None = None, num_rows: int | None = None) -> None:
        """Gives the queue other rows ``(M, d)``.

        Args:
            position: place of the next row; default the same.
            num_rows: how many of the rows count, the first ones; default as many as before.

        Raises:
            ValueError: another shape.
        """
        contents, shape = self.contents, self.contents.rows.stored.shape
        if values.shape != shape:
            raise ValueError(f"embedding_memory of shape {tuple(values.shape)}: assign {tuple(shape)}")
        if type(contents.rows) is not Rows:
            raise RuntimeError("rows that are spread over ranks cannot be assigned: call fill_memory")
        position = contents.position if position is None else position
        num_rows = len(contents.rows) if num_rows is None else num_rows
        with torch.inference_mode(False), torch.no_grad():
            rows = Rows.of(values[:num_rows].detach().clone(), len(values), self.dtype)
            labels, ids = contents.labels.to(values.device), contents.ids
            if ids is not None:
                ids = ids.to(values.device, copy=True)
                ids[num_rows:] = -1
        self.contents = contents._replace(rows=rows, labels=labels, ids=ids, position=position)
        self._read = None

    def assign_labels(self, labels: Tensor) -> None:
        """Gives the rows other labels ``(M,)``.

        Raises:
            ValueError: another shape.
        """
        own = self.contents.labels
        if labels.shape != own.shape:
            raise ValueError(f"label_memory of shape {tuple(labels.shape)}: assign {tuple(own.shape)}")
        self.contents = self.contents._replace(labels=labels.to(own))

    def resume_at(self, position: int, num_rows: int) -> None:
        """Makes ``position`` the place of the next row, and the first ``num_rows`` rows count."""
        contents = self.settled()
        if (position, num_rows) != (contents.position, len(contents.rows)):
            self.assign(self.read(), position, num_rows)

    def on(self, device: torch.device) -> Contents:
        """Returns the contents to work with, on this device and outside of ``inference_mode``."""
        stored = self.settled().rows.stored
        if stored.device != device or stored.is_inference():
            with torch.inference_mode(False):
                self.contents = self.contents.on(device)
        self._read = None
        return self.contents

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any) -> Queue:
        """Goes with the module to its device. The rows keep their dtype: ``half()`` is for the model."""
        device = fn(self.settled().labels.new_empty(0, dtype=torch.float32)).device
        self.contents, self._read = self.contents.on(device), None
        return self

    # -- a step ----------------------------------------------------------------------------------------------

    def store_anew_after_step(self) -> None:
        """Makes the rows due to be stored anew once the next step has succeeded."""
        self.contents = self.contents._replace(rows=replace(self.contents.rows, is_due=True))

    def settle(self) -> None:
        """Stores rows anew after a step that has succeeded, if that is due."""
        self.contents, self._read = self.contents._replace(rows=self.contents.rows.settle()), None

    def undo(self, before: Contents) -> None:
        """Puts back what a failed step has found."""
        before.rows.undo()
        self.contents, self._read = before, None

    # -- state -----------------------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        contents = self.settled()
        rows = contents.rows if keep_vars else contents.rows.to_save()
        if rows is not contents.rows:
            self.contents = contents = contents._replace(rows=rows)
        state = state_of(contents)
        state |= {name: contents.rows.as_saved(state[name]) for name in _OF_PLACES}
        # The state stays what it is when the run goes on.
        destination.update({prefix + name: x if keep_vars else x.clone() for name, x in state.items()})

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        *_: Any,
    ) -> None:
        names = state_of(self.contents).keys()
        missing = [prefix + name for name in names if prefix + name not in state_dict]
        if missing:
            missing_keys.extend(missing)
            return
        device = self.contents.labels.device
        with torch.inference_mode(False):
            state = {name: state_dict[prefix + name] for name in names}
            state |= {name: self.contents.rows.as_stored(state[name]) for name in _OF_PLACES}
            state = {name: _copy_on(device, values) for name, values in state.items()}
            self.contents = _contents_of(state, self.dtype, self.contents.rows)
        self._read = None

    def __getstate__(self) -> dict[str, Any]:
        self.settled()
        return {**self.__dict__, "_read": None}


def _copy_on(device: torch.device, values: Tensor) -> Tensor:
    """Returns a copy on the device, in float32 if that knows no float64."""
    is_too_wide = device.type == "mps" and values.dtype == torch.float64
    return (values.float() if is_too_wide else values).to(device, copy=True)


def state_of(contents: Contents) -> dict[str, Tensor]:
    """Returns tensors of fixed shape that hold everything."""
    rows, ids = contents.rows, contents.ids
    numbers = [_VERSION, contents.num_calls, len(rows), contents.position, rows.is_as_stored]
    numbers += [rows.sums is not None, contents.num_replaced]
    return {
        "rows": rows.stored,
        "labels": contents.labels,
        "ids": torch.full_like(contents.labels, -1) if ids is None else ids,
        "map": torch.stack([rows.scale, rows.shift, rows.noise]),
        "sums": torch.stack(rows.sums or (torch.zeros_like(rows.scale), torch.zeros_like(rows.scale))),
        "numbers": torch.tensor(numbers),
    }


def _contents_of(state: dict[str, Tensor], dtype: torch.dtype, like: Rows) -> Contents:
    """Returns the contents that have this state."""
    _, num_calls, num_rows, position, is_as_stored, has_sums, num_replaced = state["numbers"].tolist()
    names = zip(("scale", "shift", "noise"), state["map"], strict=True)
    sums = (state["sums"][0], state["sums"][1]) if has_sums else None
    rows = like.restored(
        num_rows, stored=state["rows"], sums=sums, is_as_stored=bool(is_as_stored), **dict(names)
    )
    if rows.stored.dtype != dtype:  # which rounds otherwise, and has another range
        rows = Rows.of(rows.read(rows.dtype), len(rows.stored), dtype)
    known_ids = state["ids"] if (state["ids"] >= 0).any() else None
    return Contents(rows, state["labels"], None, num_calls, position, known_ids, num_replaced)
