"""The queue of a memory: its rows, their labels, where the next ones go, and its checkpoints."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._arithmetic import at_least_float32, at_most, widest
from .._checks import INTEGERS, check_integers, check_rows
from .._tracing import can_read, is_in_compiled_step, is_tracing
from ..adapters.moments import Affine
from ._findings import Findings
from ._rows import AsTheyCame, Holding, Rows, Undo, rows_of, sums_of

# What stands where in `numbers`.
CALLS, ROWS, POSITION, HAS_SUMS, REPLACED = range(5)
# What it says of the sums: they are not kept, or of all rows, or of those of one rank, so that they
# have to be measured anew where a state is loaded on other ranks.
NO_SUMS, SUMS, SUMS_OF_A_SHARD = 0, 1, 2


# On a GPU the range of rows is looked at once in so many steps, as it takes a few launches.
_STORES_BETWEEN_LOOKS = 16


class Contents(NamedTuple):
    """What a memory holds at one moment of a step.

    Labels and ids are the queue's own tensors, and so are the rows unless a stage has written them elsewhere;
    what a stage changes of map, sums and numbers is new.
    """

    rows: Rows
    labels: Tensor  # (M,), int64
    ids: Tensor  # samples of the rows, (M,) int64, -1 where there is none
    num_calls: int | Tensor
    position: int | Tensor  # where the next row goes; as all numbers, 0-d where the host cannot read it
    # Rows that took the place of their sample's old row, counted up to M, and then from 0 again: rows are
    # looked at for drift then, as at a wrap-around.
    num_replaced: int | Tensor
    newest: Tensor | None = None  # indices of the rows stored last, (b,)
    are_finite: bool = False  # whether the host knows that all rows and the batch are
    wraps_around: bool = False  # whether the queue has gone round once with this step
    is_alike: bool = False  # whether all ranks are known to hold the same
    stored_last: AsTheyCame | None = None

    @property
    def row_labels(self) -> Tensor:
        """Labels of the first rows, those that may be occupied, ``(n,)``."""
        num_rows = self.rows.most_rows_here
        return self.labels if num_rows == self.labels.shape[0] else self.labels[:num_rows]

    def with_number_on_host(self) -> Contents:
        """Returns the contents with the exact number of rows, for which a GPU is waited for.

        For code that is not ours, which takes every row for one that is occupied.
        """
        rows = self.rows.with_number_on_host()
        return self if rows is self.rows else self._replace(rows=rows)


class Queue(nn.Module):
    """Holds the state of a memory as tensors that stay where they are, and reads and writes its checkpoints.

    They are no buffers of the module: ``DistributedDataParallel`` sends those of a model to all ranks, and
    ``half()`` casts them.

    Attributes:
        rows: stored rows u, ``(M, d)``.
        labels: ``(M,)`` int64.
        ids: samples of the rows, ``(M,)`` int64.
        map: the scale and the shift from u to the rows as they are now, ``(2, d)`` float64.
        sums: over u and over u², ``(2, d)`` float64.
        numbers: calls, occupied rows, position, whether there are sums, and replaced rows, ``(5,)`` int64, at
            ``CALLS``, ``ROWS``, ``POSITION``, ``HAS_SUMS`` and ``REPLACED``.
    """

    rows: Tensor
    labels: Tensor
    ids: Tensor
    map: Tensor
    sums: Tensor
    numbers: Tensor
    rows_class = Rows
    is_in_transaction = False
    standardizing_is_due = False  # at the end of the next step
    was_traced = False  # whether a step was ever part of a graph
    calls_over = 0  # a warm-up or delay of that many calls is over, as the host has seen

    def __init__(
        self,
        memory_size: int,
        embedding_size: int,
        dtype: torch.dtype,
        before: Queue | None = None,
        holding: Holding | None = None,
    ) -> None:
        super().__init__()
        self.dtype, self.memory_size, self.holding = dtype, memory_size, holding or Holding()
        self._pending: Contents | None = None  # of a step that is not over
        self.undo = Undo()
        # What `read` last returned, and torch's count of writes to it then: a user may write into it.
        self._read: tuple[Tensor, int] | None = None
        # The numbers of then, if a graph may store rows without any Python that would note it.
        self._numbers_read: Tensor | None = None
        # The labels that were read within a step.
        self._read_labels: Tensor | None = None
        # All that was ever read, while somebody keeps it, and torch's counts of writes as a step begins.
        self._tensors_read: list[tuple[str, weakref.ref[Tensor], int]] = []
        self._labels_before: Tensor | None = None
        self._num_own_writes = self._num_stores = self._num_written = 0
        self._newest: Tensor | None = None
        self._is_newest_accepted: Tensor | None = None  # 0-d bool, on a device; None: they are
        # Whether all ranks are known to hold the same, unless somebody has written to the labels since.
        self._is_alike, self._num_label_writes = False, 0
        device, num_calls = (None, 0) if before is None else (before.labels.device, before.num_calls)
        self._take(self._empty(embedding_size, device))
        self.numbers[CALLS] = self.calls_over = num_calls

    # No attribute is a part of a module, and a step sets many.
    __setattr__ = object.__setattr__  # type: ignore[assignment]

    def _empty(self, embedding_size: int, device: torch.device | None) -> dict[str, Tensor]:
        """Returns the state of a memory without rows."""
        with torch.inference_mode(False):
            size = self._num_stored()
            rows = torch.zeros(size, embedding_size, dtype=self.dtype, device=device)
            labels = torch.zeros(size, dtype=torch.int64, device=device)
            sums = widest(rows.new_zeros(2, embedding_size))
            affine = torch.stack([sums[0] + 1, sums[1]])
            state = {"rows": rows, "labels": labels, "ids": labels - 1, "map": affine, "sums": sums}
            return {**state, "numbers": labels.new_zeros(5)}

    def _num_stored(self) -> int:
        """Returns how many places this process holds."""
        return self.memory_size

    # Numbers of the host.

    @property
    def num_calls(self) -> int:
        return int(self._number(CALLS))

    @property
    def num_rows(self) -> int:
        return int(self._number(ROWS))

    @property
    def position(self) -> int:
        return int(self._number(POSITION))

    def _number(self, which: int) -> int | Tensor:
        if self.numbers.is_meta:
            return 0
        if self._pending is None:
            return self.numbers[which]
        return (self._pending.num_calls, self._pending.rows.num_rows, self._pending.position)[which]

    @property
    def newest(self) -> Tensor | None:
        """Indices of the rows stored last, ``(b,)``; None before the first."""
        return self._newest if self._pending is None else self._pending.newest

    # A step.

    @property
    def contents(self) -> Contents:
        """What the memory holds, with what the running step has made of it."""
        if self._pending is not None:
            return self._pending
        num_calls: int | Tensor
        if can_read(self.numbers):
            num_calls, num_rows, position, _, num_replaced = self.numbers.tolist()
            most_rows_here = self.holding.num_rows_here(num_rows)
        else:
            num_calls, num_rows, position, _, num_replaced = self.numbers.unbind()
            most_rows_here = len(self.rows) if is_tracing() else min(self._most_rows, len(self.rows))
        affine = Affine(*self.map.unbind())
        sums = self.sums if self.is_measured else None
        rows = self.rows_class(self.rows, affine, sums, num_rows, most_rows_here, self.holding)
        return Contents(rows, self.labels, self.ids, num_calls, position, num_replaced, self._newest)

    def has_refused_newest(self) -> bool:
        """Returns whether a GPU has refused the rows that were to be at ``newest``, for which the host waits.

        After a compiled step nobody knows, and it returns False.
        """
        return self._is_newest_accepted is not None and not self._is_newest_accepted

    def set_pending(self, contents: Contents) -> None:
        """Takes what a step has made so far. It is the memory's state once the step is over."""
        self._pending, self._read, self._read_labels = contents, None, None

    def will_be_alike(self) -> None:
        """Notes that once the step is over, all ranks hold the same."""
        assert self._pending is not None
        self._pending = self._pending._replace(is_alike=True)

    def next_indices(self, contents: Contents, num_rows: int) -> Tensor:
        """Returns the next indices of the queue, at most M, ``(num_rows,)``."""
        position = contents.position
        if isinstance(position, Tensor):
            return (torch.arange(num_rows, device=self.labels.device) + position) % self.memory_size
        end = position + num_rows
        indices = torch.arange(position, end, device=self.labels.device)
        return indices if end <= self.memory_size else indices % self.memory_size

    def store(
        self,
        contents: Contents,
        indices: Tensor,
        rows: Tensor,
        labels: Tensor,
        ids: Tensor | None,
        num_queued: int,
        is_accepted: Tensor | None = None,
    ) -> Contents:
        """Writes rows in place, and returns the contents with them; a step that fails takes them back.

        Args:
            contents: what the memory holds.
            indices: where the rows go, ``(k,)``.
            rows: as they are now, ``(k, d)``, in the rows' dtype or in float64.
            labels: ``(k,)``.
            ids: the rows' samples, ``(k,)``; None: they are of none.
            num_queued: how many of the indices are the queue's next.
            is_accepted: whether they are stored at all, a 0-d bool tensor; None: they are.
        """
        undo, size, before = self.undo, self.memory_size, contents.rows.with_map_for_first_rows(rows)
        num_new = num_queued if is_accepted is None else num_queued * is_accepted
        num_rows, end = at_most(before.num_rows + num_new, size), contents.position + num_new
        num_replaced = contents.num_replaced
        num_written = rows.shape[0]
        if num_written != num_queued:
            num_replaced = num_replaced + num_written - num_queued
            if isinstance(num_replaced, Tensor):
                num_replaced = torch.where(num_replaced < size, num_replaced, 0)
        own, rows, labels = self.holding.own_part(indices, rows, labels)
        after = before.written_(own, before.to_store(rows), undo, is_accepted)
        if is_accepted is not None:
            labels = torch.where(is_accepted, labels, self.labels.index_select(0, own))
            affine = (
                torch.where(is_accepted, x, y)
                for x, y in zip(after.affine, contents.rows.affine, strict=True)
            )
            after = after.replaced(affine=Affine(*affine))
        undo.write_(self.labels, own, labels)
        self._num_own_writes = _num_writes(self.labels)
        if ids is not None:
            self._has_ids = True
            undo.write_(self.ids, *self.holding.own_part(indices, ids))
        elif self._has_ids:
            none = torch.full_like(own, -1)
            if is_accepted is not None:
                none = torch.where(is_accepted, none, self.ids.index_select(0, own))
            undo.write_(self.ids, own, none)
        if isinstance(num_rows, int):
            here = self.holding.num_rows_here(num_rows)
        else:
            here = len(self.rows) if is_tracing() else min(before.most_rows_here + num_queued, len(self.rows))
        after, wraps_around = after.counted(num_rows, here), False
        if isinstance(end, int) and isinstance(num_replaced, int):
            wraps_around = max(end, num_replaced) >= size
            num_replaced = num_replaced if num_replaced < size else 0
        elif not is_tracing():
            self._look(after, num_written)
        return contents._replace(
            rows=after,
            position=end % size,
            num_replaced=num_replaced,
            newest=indices,
            wraps_around=contents.wraps_around or wraps_around,
            stored_last=AsTheyCame(own, rows, is_accepted),
        )

    def _look(self, rows: Rows, num_written: int) -> None:
        """Has a GPU look whether rows are to be standardized again: once in some steps, and a wrap-around."""
        self._num_stores, self._num_written = self._num_stores + 1, self._num_written + num_written
        if rows.sums is None:
            return
        if self._num_written >= self.memory_size:
            self._num_written = 0
            self.findings.add_("is_out_of_range", rows.have_drifted())
        if self._num_stores % _STORES_BETWEEN_LOOKS == 0:
            is_out = rows.is_out_of_range()
            assert is_out is not None  # as there are sums
            self.findings.add_("is_out_of_range", is_out)

    def standardize_if_due_(self) -> None:
        """Stores rows anew, in place, after a step that was the first to measure them or wrapped around."""
        contents = self._pending
        if contents is None or contents.rows.sums is None or is_tracing():
            return
        rows = contents.rows
        # In a tensor of their own rows have been standardized before.
        is_first = not self.is_measured and self._had_rows() and rows.stored is self.rows
        is_needed = is_first or self.standardizing_is_due
        if not isinstance(contents.num_calls, Tensor):
            has_drifted = contents.wraps_around and bool(rows.have_drifted())
            is_needed = bool(rows.has_two) and (is_needed or has_drifted)
        if is_needed:
            rows = rows.written_standardized_(rows.stored, contents.stored_last if is_first else None)
            self._pending = contents._replace(rows=rows)
        self.standardizing_is_due = False

    def _had_rows(self) -> bool:
        """Returns whether there were rows before the step; ranks that share rows decide alike."""
        return (self.numbers.tolist()[ROWS] if can_read(self.numbers) else self._most_rows) > 0

    def standardize_after_traced_steps_(self) -> None:
        """Stores rows anew, in place, if they have drifted in steps that were traced, which never do so."""
        if not self.was_traced or self.is_in_transaction or is_tracing():
            return
        contents = self.contents
        if contents.rows.sums is not None and bool(contents.rows.have_drifted()):
            self.set_pending(
                contents._replace(rows=contents.rows.written_standardized_(contents.rows.stored))
            )
            self.commit_()

    def undo_(self) -> None:
        """Takes back what a step has written."""
        if self._labels_before is not None:
            self.labels.copy_(self._labels_before)
        self.undo.undo_()
        self._pending = self._read = self._read_labels = None

    def commit_(self) -> None:
        """Makes what the step has made the memory's state."""
        self.undo.clear()
        self._labels_before = None
        contents, self._pending = self._pending, None
        if contents is None:
            return
        try:
            contents = contents._replace(rows=contents.rows.with_small_scales_in_u_())
            self._write(contents)
        except BaseException:  # an interrupt half way: nothing is to be half written
            self._write(contents)
            raise

    def _write(self, contents: Contents) -> None:
        numbers, rows = [contents.num_calls, contents.rows.num_rows, contents.position], contents.rows
        if rows.stored is not self.rows:
            self.rows.copy_(rows.stored)
        self.map.copy_(torch.stack(rows.affine))
        if rows.sums is not None:
            self.sums.copy_(rows.sums)
        numbers += [SUMS if rows.sums is not None else NO_SUMS, contents.num_replaced]
        if is_in_compiled_step():
            self.numbers.copy_(self._numbers_after(contents))
        elif any(isinstance(number, Tensor) for number in numbers):
            self.numbers.copy_(self._on_device(numbers))
        else:
            self.numbers.numpy()[:] = numbers
        self._note(is_measured=rows.sums is not None, most_rows=rows.most_rows_here)
        if contents.newest is not self._newest:
            last = contents.stored_last
            self._newest, self._is_newest_accepted = contents.newest, last and last.is_accepted
        self._read = self._read_labels = None
        self.is_alike = contents.is_alike

    def _on_device(self, numbers: list[int | Tensor]) -> Tensor:
        """Returns the numbers of a state, some of which the host does not know, as a tensor."""
        # A number of the host is written by a kernel, not copied, for which a GPU may be waited for.
        on_device = (x if isinstance(x, Tensor) else self.numbers.new_full((), x) for x in numbers)
        return torch.stack(list(on_device))

    def _numbers_after(self, contents: Contents) -> Tensor:
        """Returns the numbers of a state after a compiled step, each computed from what it was.

        So it is one kernel. Of numbers that are stacked each would be one. A compiled step is no warm-up, and
        has no samples that could be replaced.
        """
        assert contents.newest is not None
        assert contents.stored_last is not None
        which, is_accepted = torch.arange(5, device=self.numbers.device), contents.stored_last.is_accepted
        change = torch.where(which == CALLS, 1, len(contents.newest)).masked_fill(which > POSITION, 0)
        new = self.numbers + (change if is_accepted is None else change * is_accepted)
        new = torch.where(which == ROWS, new.clamp(max=self.memory_size), new)
        new = torch.where(which == POSITION, new % self.memory_size, new)
        return torch.where(which == HAS_SUMS, SUMS if contents.rows.sums is not None else NO_SUMS, new)

    def _note(self, *, is_measured: bool, most_rows: int) -> None:
        """Notes whether there are sums, and how many rows at most."""
        self.is_measured, self._most_rows = is_measured, most_rows
        # Not derived where it is read: Dynamo would check these two, which the first step changes.
        self.has_unmeasured_rows = most_rows > 0 and not is_measured

    def take_traced_step(self, newest: Tensor, *, is_measured: bool) -> None:
        """Notes what a step has changed besides the tensors of the state, where it was one operation."""
        self._newest, self._is_newest_accepted = newest, None
        self._note(is_measured=is_measured, most_rows=self.rows.shape[0])
        self._is_alike, self.was_traced = False, True
        self.findings.may_be_set = True

    def snapshot_labels(self) -> None:
        """Copies the labels for the rest of the step, as other code comes next, which may write to them."""
        if self.is_in_transaction and self._labels_before is None:
            self._labels_before = self.labels.clone()

    def begin_step(self) -> None:
        """Begins a step, within which writes by others are refused."""
        self.take_edits()
        self._labels_before = None
        self._num_own_writes = _num_writes(self.labels)
        read = ((name, reference, reference()) for name, reference, _ in self._tensors_read)
        self._tensors_read = [(name, ref, _num_writes(x)) for name, ref, x in read if x is not None]
        self.is_in_transaction = True

    # Ranks, and what others do to a memory within a step.

    @property
    def is_alike(self) -> bool:
        """Whether all ranks are known to hold the same, and nothing was written to it since."""
        are_as_they_were = not self.was_written and _num_writes(self.labels) == self._num_label_writes
        return self._is_alike and are_as_they_were

    @is_alike.setter
    def is_alike(self, is_alike: bool) -> None:
        self._is_alike = is_alike
        if is_alike:
            self._num_label_writes = _num_writes(self.labels)

    def check_no_step(self, act: str) -> None:
        """Refuses an act within a step (RuntimeError), which goes on with what it has, so that it is lost."""
        if self.is_in_transaction:
            raise RuntimeError(
                f"{act} within a step of the memory would be lost: let the memory hook return other rows, or "
                "do it when the step is over"
            )

    def _check_not_half_written(self, what: str) -> None:
        """Refuses what is taken within a step (RuntimeError), in which rows are written before their map."""
        if self.is_in_transaction:
            raise RuntimeError(
                f"{what} of the memory within a step would be half of the step before and half of this one: "
                "take it when the step is over"
            )

    def check_writes(self) -> None:
        """Refuses what a hook, a miner or a loss has written to what it has read of the memory in a step."""
        self.take_edits()  # which raises where the rows were written to
        if _num_writes(self.labels) != self._num_own_writes:
            self.check_no_step("what was written to label_memory")
        if is_tracing():  # where nobody else writes
            return
        for name, reference, num_writes in self._tensors_read:
            values = reference()
            if values is not None and _num_writes(values) != num_writes:
                self.check_no_step(f"what was written to {name}")

    # What users read and assign.

    def read_labels(self) -> Tensor:
        """Returns the labels, ``(M,)``; within a step a copy of them."""
        if not self.is_in_transaction:
            return self.labels
        if self._read_labels is None:
            self._read_labels = self.labels.clone()
            self._note_read("label_memory", self._read_labels)
        return self._read_labels

    def read(self) -> Tensor:
        """Returns the rows as they are now, ``(M, d)``, with zeros behind them."""
        self.take_edits()
        if self._read is None or self._is_outdated():
            rows = self.contents.rows.with_number_on_host()
            with torch.inference_mode(False), torch.no_grad():
                values = at_least_float32(torch.zeros_like(rows.stored))
                values[: rows.most_rows_here] = rows.read(values.dtype)
                self._numbers_read = self.numbers.clone() if self.was_traced else None
            self._read = values, values._version
            self._note_read("embedding_memory", values)
        return self._read[0]

    def _is_outdated(self) -> bool:
        """Returns whether a replay of a graph has stored rows since they were read."""
        return self._numbers_read is not None and not torch.equal(self._numbers_read, self.numbers)

    def _note_read(self, name: str, values: Tensor) -> None:
        """Remembers what was read, as long as somebody keeps it, who may write to it within a step."""
        self._tensors_read = [read for read in self._tensors_read if read[1]() is not None]
        self._tensors_read.append((name, weakref.ref(values), _num_writes(values)))

    @property
    def was_read(self) -> bool:
        """Whether somebody has got the rows as a tensor since they were last stored, and may write to it."""
        return self._read is not None

    @property
    def was_written(self) -> bool:
        """Whether somebody has written to the rows that he has got, and no step has taken that yet."""
        return self._read is not None and self._read[0]._version != self._read[1]

    def take_edits(self) -> None:
        """Takes what the user has written into the tensor that `read` returned."""
        if self._read is None or not self.was_written:
            return
        values = self._read[0]
        if self._is_outdated():
            self._read = None
            raise RuntimeError(
                "embedding_memory was written to, and a graph has stored rows since it was read, which it "
                "does not hold: read embedding_memory anew after a replay, and write to that before the next"
            )
        self.assign(values)
        # Further writes count too.
        self._read = values, values._version
        self._numbers_read = self.numbers.clone() if self.was_traced else None

    def assign(self, values: Tensor) -> None:
        """Replaces the rows by ``values`` ``(M, d)``; the occupied count stays."""
        self.check_no_step("what was written or assigned to embedding_memory")
        check_rows("embedding_memory", values, width=self.rows.shape[1])
        if values.shape != self.rows.shape:
            shape = tuple(self.rows.shape)
            raise ValueError(f"embedding_memory of shape {tuple(values.shape)}: assign {shape}")
        with torch.inference_mode(False), torch.no_grad():
            contents = self.contents
            num_rows = self.num_rows
            values = values[:num_rows].detach().to(self.rows.device)
            self.set_pending(
                contents._replace(rows=rows_of(values, contents.rows, len(self.rows), self.dtype))
            )
            self.commit_()

    def assign_labels(self, labels: Tensor) -> None:
        """Replaces the labels ``(M,)``."""
        self.check_no_step("what was assigned to label_memory")
        check_integers("label_memory", labels, len(self.labels), "one label per row")
        with torch.inference_mode(False), torch.no_grad():
            self.labels.copy_(labels)
        self.is_alike = False

    # Devices, checkpoints and copies.

    def move_to(self, device: torch.device) -> None:
        """Moves the state to a device, and out of ``inference_mode``, so that a step can use it."""
        self.take_edits()
        if self.rows.device != device or self.rows.is_inference():
            self._move(device)
        self._read = None

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any) -> Queue:
        """Goes with the module to its device. The rows keep their dtype: ``half()`` is for the model."""
        device = fn(self.labels.new_empty(0, dtype=torch.float32)).device
        if device != self.labels.device:  # else a copy would take as much again
            self.check_no_step("a move to another device")
            self.take_edits()
            self._move(device)
        return self

    def _move(self, device: torch.device) -> None:
        """Copies the state to a device, with what is to be told of earlier steps."""
        findings = self.findings
        self._load(self.state(), device)
        if not (device.type == "meta" or findings.flags.is_meta):
            self.findings.take_over_(findings)

    def state(self) -> dict[str, Tensor]:
        """Returns tensors of fixed shape that hold everything."""
        return {name: getattr(self, name) for name in STATE}

    def _load(self, state: dict[str, Tensor], device: torch.device) -> None:
        """Takes a copy of a state to the device; the device "meta" holds none."""
        if "meta" in (device.type, state["rows"].device.type):
            self._take(self._empty(self.rows.shape[1], device))
            return
        with torch.inference_mode(False), torch.no_grad():
            # MPS knows no float64. A state may have been cast along with a model.
            wide = torch.float32 if device.type == "mps" else torch.float64
            state |= {name: state[name].to(wide) for name in ("map", "sums")}
            state = {name: values.to(device, copy=True) for name, values in state.items()}
            state |= {name: state[name].long() for name in ("labels", "ids", "numbers")}
            if state["rows"].dtype != self.dtype:  # which rounds otherwise, and has another range
                state = self._in_own_dtype(state)
            self._take(state)

    def _take(self, state: dict[str, Tensor]) -> None:
        """Takes the tensors of a state, and forgets all else that the host knew of the state before."""
        for name, values in state.items():
            setattr(self, name, values)
        self.findings = Findings(self.labels.device)
        self._pending = self._read = self._newest = self._is_newest_accepted = None
        self._num_own_writes = _num_writes(self.labels)  # which are others, where they were moved
        self._num_stores = self._num_written = 0
        self.is_alike = self._has_ids = False
        if self.numbers.device.type == "meta":
            self.calls_over = 0
            self._note(is_measured=False, most_rows=0)
            return
        self._has_ids = bool((self.ids >= 0).any())
        self.calls_over, num_rows, _, has_sums, _ = self.numbers.tolist()
        self._note(is_measured=has_sums != NO_SUMS, most_rows=self.holding.num_rows_here(num_rows))
        if has_sums == SUMS_OF_A_SHARD:
            self.sums.copy_(sums_of(self.rows[: self._most_rows]))
            self.numbers[HAS_SUMS] = SUMS

    def _in_own_dtype(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns a state whose rows are stored in another dtype, in that of this memory."""
        num_calls, num_rows, position, has_sums, num_replaced = state["numbers"].tolist()
        affine, here = Affine(*state["map"].unbind()), self.holding.num_rows_here(num_rows)
        sums = state["sums"] if has_sums else None
        rows = self.rows_class(state["rows"], affine, sums, num_rows, here, self.holding)
        rows = self._stored_anew(rows)
        return state | state_of(rows, num_calls, position, num_replaced)

    def _stored_anew(self, rows: Rows) -> Rows:
        """Returns rows that are stored in another dtype in that of this memory."""
        return rows_of(rows.read(rows.dtype), rows, len(rows.stored), self.dtype)

    def _check(self, state: dict[str, Any]) -> None:
        """Refuses a state of another shape, or one whose numbers no memory of this size can have."""
        own_device = self.labels.device.type
        if own_device != "meta" and any(state[name].is_meta for name in STATE):
            raise ValueError(
                f'the checkpoint\'s rows are on the device "meta", which holds none, and the memory is on '
                f"{own_device!r}: load a checkpoint that holds rows"
            )
        for name, own in self.state().items():
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
        size = self.memory_size
        num_calls, count, position, has_sums, num_replaced = state["numbers"].tolist()
        is_possible = 0 <= count <= size and 0 <= position < size and 0 <= num_replaced < size
        if not (is_possible and num_calls >= 0 and has_sums in (NO_SUMS, SUMS, SUMS_OF_A_SHARD)):
            raise ValueError(
                f"the checkpoint counts {count} rows, {num_calls} calls and {num_replaced} replaced rows, "
                f"with row {position} to be the next, of a memory of {size} rows: it is damaged, load another"
            )

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._check_not_half_written("a state")
        self.take_edits()
        for name, values in self.state().items():
            destination[prefix + name] = values.clone()  # which stays what it is when the run goes on

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.check_no_step("a state that is loaded")
        _, is_strict, missing, unexpected, *_ = args
        if is_strict:
            others = (key for key in state_dict if key.startswith(prefix))
            unexpected += [key for key in others if key.removeprefix(prefix) not in STATE]
        state = {name: state_dict[prefix + name] for name in STATE if prefix + name in state_dict}
        missing += [prefix + name for name in STATE if name not in state]
        if len(state) == len(STATE):
            self._check(state)
            own, given = self.labels.device, state["labels"].device
            self._load(state, given if own.type == "meta" else own)

    def __getstate__(self) -> dict[str, Any]:
        self._check_not_half_written("a copy")
        self.take_edits()
        return {**self.__dict__, "_read": None, "_tensors_read": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes a copy of tensors that lie in memory shared with the process that has sent them.

        A step writes to them in place, and the other process would find them among its own.
        """
        super().__setstate__(state)
        for name, values in self.state().items():
            if values.is_shared():
                setattr(self, name, values.clone())
        self.is_alike = False


STATE = ("rows", "labels", "ids", "map", "sums", "numbers")


def state_of(rows: Rows, num_calls: int, position: int, num_replaced: int) -> dict[str, Tensor]:
    """Returns the part of a state that rows make, whose number the host knows."""
    affine = torch.stack(tuple(rows.affine))
    sums, has_sums = (torch.zeros_like(affine), NO_SUMS) if rows.sums is None else (rows.sums, SUMS)
    numbers = [num_calls, int(rows.num_rows), position, has_sums, num_replaced]
    on_device = torch.tensor(numbers, device=rows.stored.device)
    return {"rows": rows.stored, "map": affine, "sums": sums, "numbers": on_device}


def _num_writes(values: Tensor) -> int:
    """Returns torch's count of writes to a tensor in place, which it keeps of no tensor of inference mode."""
    if is_tracing():  # where nobody else writes
        return 0
    return 0 if values.is_inference() else values._version
