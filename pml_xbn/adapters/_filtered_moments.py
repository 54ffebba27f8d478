"""Estimates of moments from more than one batch."""

from __future__ import annotations

import torch
from torch import Tensor

from .._dtypes import widest
from .base_adapter import BaseAdapter
from .moments import Moments


class FilteredMoments(BaseAdapter):
    """Adapts to an estimate of the moments, which every batch moves by a gain of the subclass.

    Args:
        collect_stats: see :class:`BaseAdapter`.

    Attributes:
        estimated: ``(d,)`` each, float64; zeros before the first batch.
        num_batches: how many have moved it.
    """

    def __init__(self, *, collect_stats: bool = False) -> None:
        super().__init__(collect_stats=collect_stats)
        self._begin(0)

    def set_embedding_size(self, embedding_size: int) -> None:
        if len(self.estimated.mean) != embedding_size:  # one that is registered again goes on
            self._begin(embedding_size)

    def _begin(self, embedding_size: int) -> None:
        zeros = widest(torch.zeros(embedding_size))
        self.estimated, self.num_batches = Moments(zeros, zeros), 0

    def gain(self, batch_size: int) -> float:
        """Returns the weight of the newest batch, and advances what it depends on."""
        raise NotImplementedError

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        """Moves the estimate towards the moments of the batch by :meth:`gain`, and returns it."""
        gain, old = self.gain(batch_size), self.estimated
        if self.num_batches > 0 and gain < 1:
            new = torch.stack(batch)
            moved = torch.stack(old).to(new).lerp(new, gain)
            batch = Moments(*torch.where(moved.abs() < torch.inf, moved, new))  # NaN would stay for ever
        self.estimated = batch
        self.num_batches += 1
        return batch

    def get_extra_state(self) -> Tensor:
        return torch.cat([self.estimated.mean.new_tensor(self._numbers()), *self.estimated])

    def set_extra_state(self, state: Tensor) -> None:
        numbers, of_moments = state.tensor_split([len(self._numbers())])
        self._set_numbers(*numbers.tolist())
        self.estimated = Moments(*of_moments.clone().chunk(2))

    def _numbers(self) -> tuple[float, ...]:
        """What the state holds besides the estimate."""
        return (self.num_batches,)

    def _set_numbers(self, num_batches: float) -> None:
        self.num_batches = int(num_batches)
