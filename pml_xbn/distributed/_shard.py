"""The places of a memory that one rank holds."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch import distributed as dist

from ._collectives import is_distributed


class Shard(NamedTuple):
    """Consecutive places of a queue, as ``torch.chunk`` divides M rows among R ranks.

    Attributes:
        first: number of the first place held.
        size: how many places are held.
        num_places: M.
    """

    first: int
    size: int
    num_places: int

    @classmethod
    def of_this_rank(cls, num_places: int) -> Shard:
        """Returns the places of this rank; all of them on a single process."""
        if not is_distributed():
            return cls(0, num_places, num_places)
        most = -(-num_places // dist.get_world_size())
        first = min(dist.get_rank() * most, num_places)
        return cls(first, min(most, num_places - first), num_places)

    @property
    def is_all(self) -> bool:
        """Whether no other rank holds any."""
        return self.size == self.num_places

    def num_held(self, num_rows: int) -> int:
        """Returns how many of the first ``num_rows`` places are held."""
        return min(max(num_rows - self.first, 0), self.size)

    def held(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the places held among these ``(k,)``, numbered from the first held, and which they are."""
        numbers = ((places >= self.first) & (places < self.first + self.size)).nonzero().squeeze(1)
        return places[numbers] - self.first, numbers
