"""Rows that are spread over ranks, with one map for all of them, and their queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from .._arithmetic import rows_at_a_time
from ..memory._queue import HAS_SUMS, ROWS, SUMS_OF_A_SHARD, Contents, Queue
from ..memory._rows import Holding, Rows, sums_of
from ._group import Group

_BY_ROW = ("rows", "labels", "ids")  # entries of a queue's state that have one number or vector for each row


class Shard(Holding):
    """This rank's part of the rows of a memory: consecutive ones, divided as by ``torch.chunk``."""

    def __init__(self, group: Group, indices: range) -> None:
        self.group, self.indices = group, indices

    def num_rows_here(self, num_rows: int) -> int:
        return min(max(num_rows - self.indices.start, 0), len(self.indices))

    def sum(self, values: Tensor) -> Tensor:
        return self.group.sum(values)

    def own_part(self, indices: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        own = indices - self.indices.start
        which = ((own >= 0) & (own < len(self.indices))).nonzero().squeeze(1)
        return own[which], *(x[which] for x in values)

    def global_indices(self, indices: Tensor) -> Tensor:
        found = torch.where(indices < 0, indices, indices + self.indices.start)
        return self.group.max(found)


class ShardedRows(Rows):
    """This rank's rows of a memory that is spread over the ranks.

    The map is the same on all ranks, as it follows from moments of all rows, of which the ranks add up their
    sums. ``num_rows`` is that of all ranks; what is stored, its sums and ``most_rows_here`` are this rank's.
    """

    holding: Shard
    # What all parts of these rows are read into, by dtype; None: each part has its own.
    buffers: dict[torch.dtype, Tensor] | None = None

    @property
    def first(self) -> int:
        """The index of the first row held."""
        return self.holding.indices.start

    @property
    def group(self) -> Group:
        """The ranks that the rows are spread over."""
        return self.holding.group

    def divided(self, all_slices: Iterable[slice]) -> Iterator[ShardedRows]:
        """Yields slices of this rank's rows, to be read, largest first.

        They are read into one tensor. If every part had its own, what is kept of the parts would lie between
        these, and what one part frees would be too small for the next.
        """
        buffers: dict[torch.dtype, Tensor] = {}
        for rows in all_slices:
            part = self._at(self.holding.indices[rows])
            part.buffers = buffers
            yield part

    def measured(self) -> Rows:
        """Returns the rows with their sums, standardized if all ranks see that they are out of range."""
        if self.sums is None:
            return super().measured()
        return self.written_standardized_(torch.zeros_like(self.stored)) if self.is_out_of_range() else self

    def without_rows(self) -> ShardedRows:
        """Returns what a rank has that holds no rows, of these."""
        rows = self._at(self.holding.indices[:0])
        if self.sums is not None:
            rows.sums = torch.zeros_like(self.sums)
        return rows

    def _at(self, indices: range) -> ShardedRows:
        """Returns those of the rows with these indices, of which this rank holds all."""
        stored = self.stored[indices.start - self.first : indices.stop - self.first]
        shard = Shard(self.group, indices)
        here = min(max(self.first + self.most_rows_here - indices.start, 0), len(indices))
        return ShardedRows(stored, self.affine, self.sums, self.num_rows, here, shard)

    def _buffer(self, dtype: torch.dtype) -> Tensor | None:
        if self.buffers is None:
            return super()._buffer(dtype)
        if dtype not in self.buffers:
            num_rows = min(self.most_rows_here, rows_at_a_time(self.stored))
            self.buffers[dtype] = self.stored.new_empty(num_rows, self.stored.shape[1], dtype=dtype)
        return self.buffers[dtype]


def indices_of(rank: int, num_ranks: int, memory_size: int) -> range:
    """Returns the indices of the rows that a rank holds."""
    most = -(-memory_size // num_ranks)
    return range(memory_size)[rank * most : (rank + 1) * most]


class ShardedQueue(Queue):
    """The queue of such rows. In its state, what has an entry for each row is a DTensor.

    ``torch.distributed.checkpoint`` can load these on another number of ranks. As that has other shards, the
    sums over the rows of a shard are measured anew, when a state is saved and when it is loaded.
    """

    rows_class = ShardedRows
    holding: Shard

    def __init__(
        self,
        memory_size: int,
        embedding_size: int,
        dtype: torch.dtype,
        before: Queue | None = None,
        *,
        group: Group,
    ) -> None:
        shard = Shard(group, indices_of(group.rank, group.size, memory_size))
        super().__init__(memory_size, embedding_size, dtype, before, shard)

    def _num_stored(self) -> int:
        return len(self.holding.indices)

    @property
    def contents(self) -> Contents:
        """What this rank holds. Which of its rows are occupied follows from the number of all ranks' rows."""
        return super().contents.with_number_on_host()

    def _had_rows(self) -> bool:
        return bool(self.numbers[ROWS] > 0)

    def check_indices(self, group: Group) -> None:
        """Refuses a group whose ranks would hold other rows."""
        own, other = self.holding.indices, indices_of(group.rank, group.size, self.memory_size)
        if (other.start, len(other)) != (own.start, len(own)):
            raise ValueError(
                f"process_group makes this rank {group.rank} of {group.size}, which holds "
                f"{len(other)} rows from {other.start} on, but it holds {len(own)} from "
                f"{own.start} on: build another memory with this process_group, and load a checkpoint"
            )

    def assign(self, values: Tensor) -> None:
        raise RuntimeError("rows that are spread over ranks cannot be assigned: call fill_memory")

    def _stored_anew(self, rows: Rows) -> Rows:
        # Moments of all rows are those of all ranks, which may load at different times.
        rounded = rows.stored.to(self.dtype)
        if rows.num_rows == 0:
            return rows.replaced(stored=rounded)
        self.standardizing_is_due = True
        return rows.replaced(stored=rounded, sums=sums_of(rounded[: rows.most_rows_here]))

    def _measure_sums_(self) -> None:
        """Measures the sums anew, as sums that were added to and subtracted from are rounded otherwise."""
        if self.is_measured:
            self.sums.copy_(sums_of(self.rows[: self.holding.num_rows_here(self.num_rows)]))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        try:
            from torch.distributed.tensor import DTensor
            from torch.distributed.tensor import Shard as ShardOfTensor
        except ImportError as error:
            raise RuntimeError(
                f"torch {torch.__version__} saves no memory with shard_distributed=True: update to "
                "torch 2.5, or pass gather_distributed=True"
            ) from error
        self._measure_sums_()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.is_measured:
            destination[prefix + "numbers"][HAS_SUMS] = SUMS_OF_A_SHARD
        mesh = self.holding.group.mesh(self.labels.device.type)
        for name in _BY_ROW:
            own = destination[prefix + name]
            shape = torch.Size([self.memory_size, *own.shape[1:]])
            whole: Any = DTensor.from_local(
                own, mesh, [ShardOfTensor(0)], run_check=False, shape=shape, stride=own.stride()
            )
            # Which torch.save keeps, and torch.load gives every rank.
            whole.first = self.holding.indices.start
            destination[prefix + name] = whole

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state, own = dict(state_dict), self.holding.indices
        for key in {prefix + name for name in _BY_ROW} & state.keys():
            saved = state[key]
            if getattr(saved, "first", own.start) != own.start:
                raise ValueError("the state is another rank's: save it with torch.distributed.checkpoint")
            state[key] = saved.to_local() if hasattr(saved, "to_local") else saved[own.start : own.stop]
        super()._load_from_state_dict(state, prefix, *args)
        self._measure_sums_()
