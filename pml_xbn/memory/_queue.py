"""The queue of a memory: its rows, their labels, where the next ones go, and its checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._arithmetic import at_least_float32
from .._tensor_checks import INTEGERS
from ._rows import Rows, sums_of

SUMS_OF_A_SHARD = 2  # in a state, where sums are over the rows of one rank, and have to be measured anew


class Contents(NamedTuple):
    """What a memory holds; every step makes new ones."""

    rows: Rows
    labels: Tensor  # (M,), int64
    ids: Tensor  # samples of the rows, (M,) int64, -1 where there is none
    newest: Tensor | None = None  # places of the rows stored last, (b,)
    num_calls: int = 0
    position: int = 0  # place of the next row
    num_replaced: int = 0  # rows that took the place of their sample's old row, since the last turn ended
    # Whether all ranks are known to hold the same: they do once they have compared them, and after steps that
    # they make together.
    is_alike: bool = False

    @property
    def row_labels(self) -> Tensor:
        """Labels of the occupied rows, ``(n,)``."""
        num_rows = self.rows.num_rows_here
        return self.labels if num_rows == len(self.labels) else self.labels[:num_rows]

    def next_places(self, num_rows: int) -> Tensor:
        """Returns the next places of the queue, at most M."""
        end = self.position + num_rows
        places = torch.arange(self.position, end, device=self.labels.device)
        return places if end <= self.rows.num_places else places % self.rows.num_places

    def put(
        self, places: Tensor, rows: Tensor, labels: Tensor, ids: Tensor | None, num_queued: int
    ) -> Contents:
        """Returns the contents with rows ``(k, d)`` in their places, of which some are the queue's next."""
        size, end = self.rows.num_places, self.position + num_queued
        num_replaced = self.num_replaced + len(rows) - num_queued
        ends_turn = max(end, num_replaced) >= size
        new_rows = self.rows.put(places, rows, max(len(self.rows), min(end, size)), ends_turn)
        own_places, labels = self.rows.own_part(places, labels)
        if ids is None:
            ids = self.ids.index_fill(0, own_places, -1)
        else:
            ids = self.ids.index_copy(0, *self.rows.own_part(places, ids))
        labels = self.labels.index_copy(0, own_places, labels)
        num_replaced = num_replaced if num_replaced < size else 0
        return Contents(new_rows, labels, ids, places, self.num_calls, end % size, num_replaced)

    def state(self) -> dict[str, Tensor]:
        """Returns tensors of fixed shape that hold everything."""
        rows = self.rows
        sums = rows.sums or (torch.zeros_like(rows.scale), torch.zeros_like(rows.scale))
        numbers = [self.num_calls, len(rows), self.position, rows.sums is not None, self.num_replaced]
        return {
            "rows": rows.stored,
            "labels": self.labels,
            "ids": self.ids,
            "map": torch.stack([rows.scale, rows.shift]),
            "sums": torch.stack(sums),
            "numbers": torch.tensor(numbers, device="cpu"),  # whatever the default device is
        }

    def restored(self, state: dict[str, Tensor], dtype: torch.dtype) -> Contents:
        """Returns the contents that have this state, stored in a dtype, in the places of these."""
        num_calls, count, position, has_sums, num_replaced = state["numbers"].tolist()
        (scale, shift), sums = state["map"], tuple(state["sums"]) if has_sums else None
        rows = replace(self.rows, stored=state["rows"], count=count, scale=scale, shift=shift, sums=sums)
        rows = replace(rows, needs_whitening=False, overwritten=[])
        if has_sums == SUMS_OF_A_SHARD:
            rows = replace(rows, sums=sums_of(rows.stored[: rows.num_rows_here]))
        if rows.stored.dtype != dtype:  # which rounds otherwise, and has another range
            rows = rows.in_dtype(dtype)
        labels, ids = state["labels"].long(), state["ids"].long()
        return Contents(rows, labels, ids, None, num_calls, position, num_replaced)


class Queue(nn.Module):
    """Holds the contents of a memory, reads and writes their state, and moves them between devices."""

    contents: Contents  # replaced by every step
    kind = Rows
    is_in_transaction = False
    _labels_at_start: tuple[Tensor, int]  # of a step: what the user may have, and its count of writes then

    def __init__(
        self, memory_size: int, embedding_size: int, dtype: torch.dtype, before: Contents | None = None
    ) -> None:
        super().__init__()
        self.dtype = dtype
        # What `read` last returned, and torch's count of writes to it then: a user may write into it.
        self._read: tuple[Tensor, int] | None = None
        device, num_calls = (None, 0) if before is None else (before.labels.device, before.num_calls)
        self.contents = self._empty(memory_size, embedding_size, device)._replace(num_calls=num_calls)

    def _empty(self, memory_size: int, embedding_size: int, device: torch.device | None) -> Contents:
        with torch.inference_mode(False):
            rows = self.kind.empty(memory_size, embedding_size, self.dtype, device)
            labels = torch.zeros(len(rows.stored), dtype=torch.int64, device=device)
            return Contents(rows, labels, labels - 1)

    def read(self) -> Tensor:
        """Returns the rows as they are now, ``(M, d)``, with zeros behind them."""
        rows = self.with_edits().rows
        if self._read is None:
            with torch.inference_mode(False), torch.no_grad():
                values = at_least_float32(torch.zeros_like(rows.stored))
                values[: rows.num_rows_here] = rows.read(values.dtype)
            self._read = values, values._version
        return self._read[0]

    def with_edits(self) -> Contents:
        """Returns the contents, with what the user has written into the tensor that `read` returned."""
        if self._read is not None and self._read[0]._version != self._read[1]:
            values = self._read[0]
            self.assign(values)
            self._read = values, values._version  # the user's tensor goes on to count
        return self.contents

    @property
    def is_alike(self) -> bool:
        """Whether all ranks are known to hold the same, and nothing was written to it since."""
        are_rows_as_read = self._read is None or self._read[0]._version == self._read[1]
        return self.contents.is_alike and are_rows_as_read and _num_writes(self.contents.labels) == 0

    def check_no_step(self, act: str) -> None:
        """Refuses an act within a step (RuntimeError), which goes on with what it has, so that it is lost."""
        if self.is_in_transaction:
            raise RuntimeError(
                f"{act} within a step of the memory would be lost: let the memory hook return other rows, or "
                "do it when the step is over"
            )

    def begin_step(self) -> Callable[[], None]:
        """Begins a step, within which writes by others are refused. Returns a function that takes it back."""
        before = self.with_edits()
        labels, num_writes = before.labels, _num_writes(before.labels)
        copied = labels.clone()  # as a hook may write to the tensor itself

        def take_back() -> None:
            before.rows.undo()
            if _num_writes(labels) != num_writes:
                labels.copy_(copied)
            self.hold(before)

        self._labels_at_start = labels, num_writes
        self.is_in_transaction = True
        return take_back

    def check_writes(self) -> None:
        """Refuses what a hook, a miner or a loss has written to rows or labels since the step began."""
        self.with_edits()  # which raises where the rows were written to
        labels, num_writes = self._labels_at_start
        if _num_writes(labels) != num_writes:
            self.check_no_step("what was written to label_memory")

    def assign(self, values: Tensor) -> None:
        """Gives the queue other rows ``(M, d)``, of which as many count as before."""
        self.check_no_step("what was written or assigned to embedding_memory")
        rows, shape = self.contents.rows, self.contents.rows.stored.shape
        if values.shape != shape:
            raise ValueError(f"embedding_memory of shape {tuple(values.shape)}: assign {tuple(shape)}")
        with torch.inference_mode(False), torch.no_grad():
            values = values[: len(rows)].detach().to(rows.stored.device)
            rows = Rows.of(values, len(rows.stored), self.dtype)
            self.hold(self.contents._replace(rows=rows, is_alike=False))

    def assign_labels(self, labels: Tensor) -> None:
        """Gives the rows other labels ``(M,)``."""
        self.check_no_step("what was assigned to label_memory")
        own = self.contents.labels
        if labels.shape != own.shape:
            raise ValueError(f"label_memory of shape {tuple(labels.shape)}: assign {tuple(own.shape)}")
        self.contents = self.contents._replace(labels=labels.to(own, copy=True), is_alike=False)

    def hold(self, contents: Contents) -> None:
        """Takes contents. From here on, writing into a tensor that `read` has returned has no effect."""
        self.contents, self._read = contents, None

    def move_to(self, device: torch.device) -> None:
        """Moves the contents to a device, and out of ``inference_mode``, so that a step can use them."""
        stored = self.with_edits().rows.stored
        if stored.device != device or stored.is_inference():
            self._load(self.contents.state(), device)
        self._read = None

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any) -> Queue:
        """Goes with the module to its device. The rows keep their dtype: ``half()`` is for the model."""
        device = fn(self.contents.labels.new_empty(0, dtype=torch.float32)).device
        if device != self.contents.labels.device:  # else a copy would take as much again
            self.check_no_step("a move to another device")
            self._load(self.with_edits().state(), device)
        return self

    def _load(self, state: dict[str, Tensor], device: torch.device) -> None:
        """Takes a copy of a state to the device; the device "meta" holds none."""
        if "meta" in (device.type, state["rows"].device.type):
            rows = self.contents.rows
            self.hold(self._empty(rows.num_places, rows.stored.shape[1], device))
            return
        with torch.inference_mode(False):
            if device.type == "mps":  # which knows no float64
                state |= {name: state[name].float() for name in ("map", "sums")}
            state = {name: values.to(device, copy=True) for name, values in state.items()}
            self.hold(self.contents.restored(state, self.dtype))

    def _check(self, state: dict[str, Any]) -> None:
        """Refuses a state of another shape, or one whose numbers no memory of this size can have."""
        own_device = self.contents.labels.device.type
        if own_device != "meta" and any(state[name].device.type == "meta" for name in self.contents.state()):
            raise ValueError(
                f'the checkpoint\'s rows are on the device "meta", which holds none, and the memory is on '
                f"{own_device!r}: load a checkpoint that holds rows"
            )
        for name, own in self.contents.state().items():
            if state[name].shape != own.shape:
                raise ValueError(
                    f"the checkpoint's {name!r} have shape {tuple(state[name].shape)}, not {tuple(own.shape)}"
                    ": load a checkpoint of a memory that was built as this one"
                )
            if not own.is_floating_point() and state[name].dtype not in INTEGERS:
                raise ValueError(
                    f"the checkpoint's {name!r} have dtype {state[name].dtype}: load one that holds integers"
                )
        if state["numbers"].device.type == "meta":
            return
        size = self.contents.rows.num_places
        num_calls, count, position, has_sums, num_replaced = state["numbers"].tolist()
        is_possible = 0 <= count <= size and 0 <= position < size and 0 <= num_replaced < size
        if not (is_possible and num_calls >= 0 and has_sums in (0, 1, SUMS_OF_A_SHARD)):
            raise ValueError(
                f"the checkpoint counts {count} rows, {num_calls} calls and {num_replaced} replaced rows, "
                f"with row {position} to be the next, of a memory of {size} rows: it is damaged, load another"
            )

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, values in self.with_edits().state().items():
            destination[prefix + name] = values.clone()  # which stays what it is when the run goes on

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        _, is_strict, missing, unexpected, *_ = args
        names = self.contents.state().keys()
        if is_strict:
            others = (key for key in state_dict if key.startswith(prefix))
            unexpected += [key for key in others if key.removeprefix(prefix) not in names]
        state = {name: state_dict[prefix + name] for name in names if prefix + name in state_dict}
        missing += [prefix + name for name in names if name not in state]
        if len(state) == len(names):
            self._check(state)
            own, given = self.contents.labels.device, state["labels"].device
            self._load(state, given if own.type == "meta" else own)

    def __getattr__(self, name: str) -> Any:
        """Finds what is in the state, as torch.distributed.checkpoint looks for it."""
        contents = self.__dict__.get("contents")
        state = {} if contents is None or name.startswith("_") else contents.state()
        return state[name] if name in state else super().__getattr__(name)

    def __getstate__(self) -> dict[str, Any]:
        self.with_edits()
        return {**self.__dict__, "_read": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes a copy of rows that lie in memory shared with the process that has sent them.

        A step writes to them in place, and the other process would find them among its own.
        """
        super().__setstate__(state)
        rows = self.contents.rows
        if rows.stored.is_shared():
            rows = replace(rows, stored=rows.stored.clone(), overwritten=[])
        self.contents = self.contents._replace(rows=rows, is_alike=False)


def _num_writes(values: Tensor) -> int:
    """Returns torch's count of writes to a tensor in place, which it keeps of no tensor of inference mode."""
    return 0 if values.is_inference() else values._version


def prepare_state(state: dict[str, Any], prefix: str, memory: nn.Module, queue: Queue) -> None:
    """Refuses a state of a memory of another size, and turns one of PML's ``CrossBatchMemory`` into ours."""
    rows, labels = (state.pop(prefix + name, None) for name in ("embedding_memory", "label_memory"))
    own = queue.contents.rows
    own_size = own.num_places, own.stored.shape[1]
    saved_rows = state.get(prefix + "queue.rows") if rows is None else rows
    for axis, name in enumerate(("memory_size", "embedding_size")):
        if saved_rows is not None and saved_rows.shape[axis] != own_size[axis]:
            raise ValueError(
                f"the checkpoint's memory has shape {tuple(saved_rows.shape)}, this one {own_size}: "
                f"build it with {name}={saved_rows.shape[axis]}, not {own_size[axis]}"
            )
    if rows is None or labels is None:
        return
    occupied = (rows != 0).any(dim=1).nonzero()
    num_rows = int(occupied[-1]) + 1 if len(occupied) else 0
    position = num_rows % len(rows)
    warnings.warn(
        f"the checkpoint holds no queue position, as those of PML's CrossBatchMemory: took {num_rows} of "
        f"{len(rows)} rows to be filled and row {position} to be the next one written, and count calls from "
        "0, so warmup and delay start over",
        stacklevel=2,
    )
    stored = Rows.of(rows[:num_rows], len(rows), queue.dtype)
    contents = Contents(stored, labels, torch.full_like(labels, -1), position=position)
    state.update({f"{prefix}queue.{name}": values for name, values in contents.state().items()})
    # What PML's class has no counterpart for stays as it is.
    for key, value in memory.state_dict(prefix=prefix).items():
        if not key.startswith((prefix + "loss.", prefix + "miner.")):
            state.setdefault(key, value)
