"""Rows of which every rank holds some, with one map for all, and reductions over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..memory._queue import SUMS_OF_A_SHARD, Contents, Queue
from ..memory._rows import Rows, sums_of
from ._group import Group

_OF_PLACES = ("rows", "labels", "ids")  # entries of a queue's state that have one of every place


@dataclass(frozen=True, eq=False)
class ShardedRows(Rows):
    """This rank's rows of a memory that is spread over the ranks.

    The map is the same on all ranks, as it follows from moments of all rows, of which the ranks add up their
    sums. ``count`` and places are those of all ranks; what is stored, its sums and ``num_rows_here`` are this
    rank's. Ranks hold consecutive places, divided as by ``torch.chunk``.
    """

    first: int = 0  # number of the first place held
    group: Group = field(default_factory=Group)
    # What all parts of these rows are read into, by dtype; None: each part has its own.
    rooms: dict[torch.dtype, Tensor] | None = None

    @classmethod
    def spread(
        cls,
        group: Group,
        num_places: int,
        embedding_size: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> ShardedRows:
        """Returns this rank's places without a row yet."""
        places = places_of(group.rank, group.size, num_places)
        rows = Rows.empty(len(places), embedding_size, dtype, device)
        of_all = 0, rows.scale, rows.shift, num_places, rows.dtype
        return cls(rows.stored, *of_all, first=places.start, group=group)

    @property
    def num_rows_here(self) -> int:
        return min(max(self.count - self.first, 0), len(self.stored))

    def divided(self, all_places: Iterable[slice]) -> Iterator[ShardedRows]:
        """Yields those of this rank's rows that it holds in some of its places, to be read, largest first.

        They are read into one tensor. If every part had its own, what is kept of the parts would lie between
        these, and what one part frees would be too small for the next.
        """
        rooms: dict[torch.dtype, Tensor] = {}
        for places in all_places:
            yield replace(self, stored=self.stored[places], first=self.first + places.start, rooms=rooms)

    def _room(self, dtype: torch.dtype) -> Tensor:
        if self.rooms is None:
            return super()._room(dtype)
        if dtype not in self.rooms:
            self.rooms[dtype] = super()._room(dtype)
        return self.rooms[dtype]

    def without_rows(self) -> ShardedRows:
        """Returns what a rank has that holds no places, of these rows."""
        return replace(self, stored=self.stored[:0], first=self.num_places, overwritten=[])

    def in_dtype(self, dtype: torch.dtype) -> ShardedRows:
        """Returns these rows, rounded; they are stored anew in the next step, with the moments of all."""
        rows = replace(self, stored=self.stored.to(dtype), dtype=torch.promote_types(dtype, torch.float32))
        if self.count == 0:
            return rows
        return replace(rows, sums=sums_of(rows.stored[: rows.num_rows_here]), needs_whitening=True)

    def over_ranks(self, sums: Tensor) -> Tensor:
        return self.group.sum(sums)

    @cached_property
    def totals(self) -> tuple[Tensor, ...]:
        return tuple(self.over_ranks(torch.stack(super().totals)))

    def own_part(self, places: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        own = places - self.first
        which = ((own >= 0) & (own < len(self.stored))).nonzero().squeeze(1)
        return own[which], values[which]

    def global_places(self, places: Tensor) -> Tensor:
        found = torch.where(places < 0, places, places + self.first)
        return self.group.max(found)

    def measured(self) -> ShardedRows:
        if self.needs_whitening:
            return self
        if self.sums is None:
            # They are stored whitened in place, once the step has succeeded: a copy may not fit the memory.
            return replace(self, sums=sums_of(self.stored[: self.num_rows_here]), needs_whitening=True)
        # Seen here and not before the step, alike on all ranks.
        return self.whitened(torch.zeros_like(self.stored)) if Rows.is_out_of_range(self) else self

    def is_out_of_range(self) -> None:
        """Is seen when the rows are measured."""


def places_of(rank: int, num_ranks: int, num_places: int) -> range:
    """Returns the places that a rank holds."""
    most = -(-num_places // num_ranks)
    return range(num_places)[rank * most : (rank + 1) * most]


class ShardedQueue(Queue):
    """The queue of such rows. In its state, what has an entry of every place is a DTensor.

    ``torch.distributed.checkpoint`` can load these on another number of ranks. As that has other shards, the
    sums over the rows of a shard are measured anew, when a state is saved and when it is loaded.
    """

    kind = ShardedRows

    def __init__(
        self,
        memory_size: int,
        embedding_size: int,
        dtype: torch.dtype,
        before: Contents | None = None,
        *,
        group: Group,
    ) -> None:
        self.group = group  # which is asked for before there is anything else
        super().__init__(memory_size, embedding_size, dtype, before)

    def _empty(self, memory_size: int, embedding_size: int, device: torch.device | None) -> Contents:
        with torch.inference_mode(False):
            rows = ShardedRows.spread(self.group, memory_size, embedding_size, self.dtype, device)
            labels = torch.zeros(len(rows.stored), dtype=torch.int64, device=device)
            return Contents(rows, labels, labels - 1)

    def check_places(self, group: Group) -> None:
        """Refuses a group whose ranks would hold other places."""
        rows: Any = self.contents.rows
        places = places_of(group.rank, group.size, rows.num_places)
        if (places.start, len(places)) != (rows.first, len(rows.stored)):
            raise ValueError(
                f"process_group makes this rank {group.rank} of {group.size}, which holds "
                f"{len(places)} rows from {places.start} on, but it holds {len(rows.stored)} from "
                f"{rows.first} on: build another memory with this process_group, and load a checkpoint"
            )

    def assign(self, values: Tensor) -> None:
        raise RuntimeError("rows that are spread over ranks cannot be assigned: call fill_memory")

    def _measure(self) -> None:
        rows = self.contents.rows
        if rows.sums is not None:
            rows = replace(rows, sums=sums_of(rows.stored[: rows.num_rows_here]))
        self.contents = self.contents._replace(rows=rows)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        try:
            from torch.distributed.tensor import DTensor, Shard
        except ImportError as error:
            raise RuntimeError(
                f"torch {torch.__version__} saves no memory with shard_distributed=True: update to "
                "torch 2.5, or pass gather_distributed=True"
            ) from error
        self._measure()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.contents.rows.sums is not None:
            destination[prefix + "numbers"][3] = SUMS_OF_A_SHARD
        mesh = self.group.mesh(self.contents.labels.device.type)
        rows: Any = self.contents.rows
        for name in _OF_PLACES:
            own = destination[prefix + name]
            shape = torch.Size([rows.num_places, *own.shape[1:]])
            whole: Any = DTensor.from_local(
                own, mesh, [Shard(0)], run_check=False, shape=shape, stride=own.stride()
            )
            whole.first = rows.first  # which torch.save keeps, and torch.load gives every rank
            destination[prefix + name] = whole

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state, rows = dict(state_dict), self.contents.rows
        assert isinstance(rows, ShardedRows)
        for key in {prefix + name for name in _OF_PLACES} & state.keys():
            saved, end = state[key], rows.first + len(rows.stored)
            if getattr(saved, "first", rows.first) != rows.first:
                raise ValueError("the state is another rank's: save it with torch.distributed.checkpoint")
            state[key] = saved.to_local() if hasattr(saved, "to_local") else saved[rows.first : end]
        super()._load_from_state_dict(state, prefix, *args)
        self._measure()
