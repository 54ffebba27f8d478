"""Rows of which every rank holds some, with one map for all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from ..adapters.affine import Affine
from ..memory._rows import Rows
from ..memory._sums import Sums, sums_of
from ._collectives import all_reduced


@dataclass(frozen=True, eq=False)
class ShardedRows(Rows):
    """This rank's rows of a memory that is spread over the ranks.

    The map is the same on all ranks, as it follows from moments of all rows, of which the ranks add up their
    sums. ``len()`` and :meth:`put` count rows and places of all ranks; what is stored, and ``num_rows``, are
    this rank's. Methods that add up sums are called on all ranks.

    Attributes:
        first: number of the first place held. Ranks hold consecutive places, divided as by ``torch.chunk``.
        num_places_of_all: M, of all ranks.
        num_total: rows of all ranks.
        total: sums over the stored rows of all ranks; None: they have changed since they were added up.
    """

    first: int = 0
    num_places_of_all: int = 0
    num_total: int = 0
    total: Sums | None = None

    @classmethod
    def empty(
        cls, num_places: int, embedding_size: int, dtype: torch.dtype, device: torch.device | None = None
    ) -> ShardedRows:
        most = -(-num_places // dist.get_world_size())
        first = min(dist.get_rank() * most, num_places)
        rows = Rows.empty(min(most, num_places - first), embedding_size, dtype, device)
        return cls(
            rows.stored, 0, rows.scale, rows.shift, rows.noise, first=first, num_places_of_all=num_places
        )

    def restored(self, num_rows: int, **saved: Any) -> ShardedRows:
        own = super().restored(self._num_held(num_rows), **saved)
        return replace(own, num_total=num_rows).to_save()

    def to_save(self) -> ShardedRows:
        # Another number of ranks has other shards, so a checkpoint holds no sums of them.
        sums = None if self.sums is None else sums_of(self.stored[: self.num_rows])
        return replace(self, sums=sums, total=None)

    def as_saved(self, values: Tensor) -> Tensor:
        """Returns a DTensor, which ``torch.distributed.checkpoint`` can load on another number of ranks."""
        kind, split = _dtensor()
        from torch.distributed.device_mesh import DeviceMesh

        assert dist.group.WORLD is not None
        mesh = DeviceMesh.from_group(dist.group.WORLD, values.device.type)
        shape = torch.Size([self.num_places, *values.shape[1:]])
        result: Tensor = kind.from_local(
            values, mesh, [split(0)], run_check=False, shape=shape, stride=values.stride()
        )
        return result

    def as_stored(self, saved: Any) -> Tensor:
        is_sharded = isinstance(saved, _dtensor()[0])
        own: Tensor = saved.to_local() if is_sharded else saved[self.first : self.first + len(self.stored)]
        return own

    def __len__(self) -> int:
        return self.num_total

    @property
    def num_places(self) -> int:
        return self.num_places_of_all

    @property
    def most_places(self) -> int:
        """How many places the rank with the most of them holds."""
        return -(-self.num_places // dist.get_world_size())

    def _num_held(self, num_rows: int) -> int:
        """Returns how many of the first ``num_rows`` places are held."""
        return min(max(num_rows - self.first, 0), len(self.stored))

    def places_here(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the places held among these ``(k,)``, numbered from the first held, and which they are."""
        own = places - self.first
        which = ((own >= 0) & (own < len(self.stored))).nonzero().squeeze(1)
        return own[which], which

    def held(self, places: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        own, which = self.places_here(places)
        return own, values[which]

    def everywhere(self, places: Tensor) -> Tensor:
        found = torch.where(places < 0, places, places + self.first)
        return all_reduced(found, dist.ReduceOp.MAX)

    def measured(self) -> ShardedRows:
        rows = super().measured()
        if rows.total is not None:
            return rows
        assert rows.sums is not None
        first, second = all_reduced(torch.stack(rows.sums))
        rows = replace(rows, total=(first, second))
        return replace(rows, is_due=rows.is_due or bool(Rows.is_out_of_range(rows)))

    @property
    def totals(self) -> Sums:
        assert self.total is not None, "to be measured first"
        return self.total

    def sums_of_groups(self, places: Tensor, slots: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
        count, first, second = super().sums_of_groups(places, slots, num_groups)
        return all_reduced(count), all_reduced(first), all_reduced(second)

    def adapted_in_groups(
        self, slots: Tensor, is_adapted: Tensor, group_maps: Affine, other_map: Affine | None
    ) -> ShardedRows:
        return replace(super().adapted_in_groups(slots, is_adapted, group_maps, other_map), total=None)

    def put(self, places: Tensor | slice, values: Tensor, num_rows: int) -> ShardedRows:
        assert isinstance(places, Tensor)
        after = super().put(*self.held(places, values), self._num_held(num_rows))
        return replace(after, num_total=num_rows, total=None)

    def is_out_of_range(self) -> None:
        """Is seen when the rows are measured, alike on all ranks."""

    def stored_anew(self) -> ShardedRows:
        return replace(super().stored_anew(), total=None)


def _dtensor() -> tuple[Any, Any]:
    """Returns torch's tensor that is spread over ranks, and what says that rows are."""
    try:
        from torch.distributed.tensor import DTensor, Shard
    except ImportError as error:
        raise RuntimeError(
            f"torch {torch.__version__} saves no memory with shard_distributed=True: update to torch 2.5, "
            "or pass gather_distributed=True"
        ) from error
    return DTensor, Shard
