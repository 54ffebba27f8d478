"""The queue of a memory: its rows, their labels, and where the next ones go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._dtypes import at_least_float32
from ._rows import Rows
from ._sums import Sums

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
    num_replaced: int = 0  # rows that have taken the place of their sample's, since all were stored anew

    @property
    def row_labels(self) -> Tensor:
        """Labels of the occupied rows, ``(n,)``."""
        num_rows = self.rows.num_rows
        return self.labels if num_rows == len(self.labels) else self.labels[:num_rows]

    def put(self, rows: Tensor, labels: Tensor, *, is_whitened: bool, ids: Tensor | None = None) -> Contents:
        """Returns the contents with rows ``(b, d)``, at most M, in the place of the oldest ones.

        Args:
            is_whitened: see :meth:`Rows.put`.
        """
        size, end = self.rows.num_places, self.position + len(rows)
        places = torch.arange(self.position, end, device=rows.device)
        if end > size:
            places %= size
        held, numbers = self.rows.held(places)
        new_labels, new_ids = self.labels.index_copy(0, held, labels[numbers]), self.ids
        if new_ids is not None or ids is not None:
            new_ids = torch.full_like(new_labels, -1) if new_ids is None else new_ids
            ids = torch.full_like(labels, -1) if ids is None else ids
            new_ids = new_ids.index_copy(0, held, ids[numbers])
        num_rows = max(len(self.rows), min(end, size))
        new_rows = self.rows.put(places, rows, num_rows, is_whitened=is_whitened)
        if end >= size:  # a turn
            new_rows = replace(new_rows, is_due=True)
        return self._replace(
            rows=new_rows, labels=new_labels, newest=places, position=end % size, ids=new_ids
        )

    def to(self, move: Callable[[Tensor], Tensor]) -> Contents:
        """Returns the same contents in the tensors that ``move`` returns."""
        rows = self.rows
        moved = replace(
            rows,
            stored=move(rows.stored),
            scale=move(rows.scale),
            shift=move(rows.shift),
            noise=move(rows.noise),
            sums=rows.sums and Sums(*map(move, rows.sums)),
        )
        newest, ids = (None if x is None else move(x) for x in (self.newest, self.ids))
        return self._replace(rows=moved, labels=move(self.labels), newest=newest, ids=ids)


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
        # The value that was read last: of which contents, and how often it had been written to.
        self._read: tuple[Contents, Tensor, int] | None = None
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
        contents = self.settled()
        if self._read is None:
            with torch.inference_mode(False), torch.no_grad():
                values = at_least_float32(torch.zeros_like(contents.rows.stored))
                values[: contents.rows.num_rows] = contents.rows.read(values.dtype)
            self._read = contents, values, values._version
        return self._read[1]

    def settled(self) -> Contents:
        """Returns the contents, once what somebody has written to the value that was read is assigned."""
        if self._read is not None:
            contents, values, version = self._read
            if contents is not self.contents:
                self._read = None
            elif values._version != version:
                self.assign(values)
                with torch.inference_mode(False), torch.no_grad():
                    # Further writes see the stored rows.
                    values[: len(self.contents.rows)] = self.contents.rows.read(values.dtype)
                self._read = self.contents, values, values._version
        return self.contents

    def assign(self, values: Tensor) -> None:
        """Gives the queue other rows ``(M, d)``.

        Raises:
            ValueError: another shape.
        """
        shape = self.contents.rows.stored.shape
        if values.shape != shape:
            raise ValueError(f"embedding_memory of shape {tuple(values.shape)}: assign {tuple(shape)}")
        self._give(values, self.contents.position, len(self.contents.rows))

    def assign_labels(self, labels: Tensor) -> None:
        """Gives the rows other labels ``(M,)``.

        Raises:
            ValueError: another shape.
        """
        contents = self.settled()
        if labels.shape != contents.labels.shape:
            raise ValueError(
                f"label_memory of shape {tuple(labels.shape)}: assign {tuple(contents.labels.shape)}"
            )
        self.contents = contents._replace(labels=labels.to(contents.labels))

    def resume_at(self, position: int, num_rows: int) -> None:
        """Makes ``position`` the place of the next row, and the first ``num_rows`` rows count."""
        contents = self.settled()
        if (position, num_rows) != (contents.position, len(contents.rows)):
            self._give(self.read(), position, num_rows)

    def _give(self, values: Tensor, position: int, num_rows: int) -> None:
        if type(self.contents.rows) is not Rows:
            raise RuntimeError("rows that are spread over ranks cannot be assigned: call fill_memory")
        with torch.inference_mode(False), torch.no_grad():
            rows = Rows.of(values[:num_rows].detach().clone(), len(values), self.dtype)
            labels, ids = self.contents.labels.to(values.device), self.contents.ids
            if ids is not None:
                ids = ids.to(values.device, copy=True)
                ids[num_rows:] = -1
        self.contents = self.contents._replace(rows=rows, labels=labels, ids=ids, position=position)

    def on(self, device: torch.device) -> Contents:
        """Returns the contents to work with, on this device and outside of ``inference_mode``."""
        stored = self.settled().rows.stored
        if stored.device != device or stored.is_inference():
            with torch.inference_mode(False):
                self.contents = self.contents.to(lambda x: _copy_on(device, x))
        self._read = None
        return self.contents

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any) -> Queue:
        """Goes with the module to its device. The rows keep their dtype: ``half()`` is for the model."""
        device = fn(self.settled().labels.new_empty(0, dtype=torch.float32)).device
        self.contents = self.contents.to(lambda x: _copy_on(device, x))
        self._read = None
        return self

    # -- a step ----------------------------------------------------------------------------------------------

    def store_anew_after_step(self) -> None:
        """Makes the rows due to be stored anew once the next step has succeeded."""
        self.contents = self.contents._replace(rows=replace(self.contents.rows, is_due=True))

    def settle(self) -> None:
        """Stores rows anew after a step that has succeeded, if that is due."""
        contents = self.contents
        is_due = contents.rows.is_due or contents.num_replaced >= contents.rows.num_places
        rows = replace(contents.rows, is_due=is_due).settle()
        if rows is not contents.rows:
            num_replaced = 0 if is_due else contents.num_replaced
            self.contents = contents._replace(rows=rows, num_replaced=num_replaced)

    def undo(self, before: Contents) -> None:
        """Puts back what a failed step has found."""
        before.rows.undo()
        self.contents = before

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
    numbers = [
        _VERSION,
        contents.num_calls,
        len(rows),
        contents.position,
        rows.is_as_stored,
        rows.sums is not None,
        contents.num_replaced,
    ]
    sums = rows.sums or Sums(torch.zeros_like(rows.scale), torch.zeros_like(rows.scale))
    return {
        "rows": rows.stored,
        "labels": contents.labels,
        "ids": torch.full_like(contents.labels, -1) if ids is None else ids,
        "map": torch.stack([rows.scale, rows.shift, rows.noise]),
        "sums": torch.stack(sums),
        "numbers": torch.tensor(numbers),
    }


def _contents_of(state: dict[str, Tensor], dtype: torch.dtype, like: Rows) -> Contents:
    """Returns the contents that have this state."""
    _, num_calls, num_rows, position, is_as_stored, has_sums, num_replaced = state["numbers"].tolist()
    sums = Sums(*state["sums"]) if has_sums else None
    scale, shift, noise = state["map"]
    rows = like.restored(
        num_rows,
        stored=state["rows"],
        scale=scale,
        shift=shift,
        noise=noise,
        sums=sums,
        is_as_stored=bool(is_as_stored),
    )
    if rows.stored.dtype != dtype:  # which rounds otherwise, and has another range
        rows = Rows.of(rows.read(rows.dtype), len(rows.stored), dtype, is_whitened=not is_as_stored)
    known_ids = state["ids"] if (state["ids"] >= 0).any() else None
    return Contents(rows, state["labels"], None, num_calls, position, known_ids, num_replaced)
