"""Cross Batch Normalization from the newest rows above all."""

from __future__ import annotations

from typing import Any

import torch

from .._dtypes import widest
from ._rows import Rows
from .base_adapter import Given
from .moment_matching import MomentMatching
from .moments import Moments


class RecencyMomentMatching(MomentMatching):
    r"""Gives the memory the moments of the batch, as :class:`MomentMatching`, by its newest rows' moments.

    .. math::
        \hat z = \frac{z - E_w[R]}{\sigma_w[R]} \, \sigma[B] + E[B], \quad
        E_w[R] = \frac{\sum_j w_j z_j}{\sum_j w_j}, \quad
        \sigma_w^2[R] = \frac{\sum_j w_j (z_j - E_w[R])^2}{\sum_j w_j - \sum_j w_j^2 / \sum_j w_j}, \quad
        w_j = 2^{-a_j / h}

    where a is how many rows have been stored since row j, and h the half-life (thesis A Study of Cross Batch
    Memory, §6.1.2, which proposes a weighted average of the memory by how recently a row was added). With
    equal weights, h = ∞, that is the unbiased variance and the map of :class:`MomentMatching`. All rows are
    mapped, the older ones by what the newer ones say.

    The age of a row is its place in the queue: there is no state, and a memory that is filled, delayed or
    resumed has the right ones at once. The weights change with every step, so that the stored rows are read
    once for them: O(M · d) a step, where :class:`MomentMatching` takes O(b · d). Called with plain tensors,
    it takes the rows to be in the order in which they were stored, the oldest first.

    Args:
        half_life: h, in rows: a row counts half as much as one that was stored so many rows later.
        match_std, momentum: as in :class:`MomentMatching`.
        collect_stats: see :class:`BaseAdapter`; its numbers are of moments without weights.

    Raises:
        ValueError: a ``half_life`` below 1, or a ``momentum`` outside [0, 1).

    Example:
        >>> memory, labels = torch.tensor([[0.0], [3.0]]), torch.tensor([0, 1])
        >>> adapter = RecencyMomentMatching(half_life=1, match_std=False)
        >>> adapter(memory, labels, torch.tensor([[10.0], [12.0]]), labels)  # E_w[R] = 2, E[B] = 11
        tensor([[ 9.],
                [12.]])
    """

    def __init__(
        self, half_life: float, match_std: bool = True, momentum: float = 0.0, **kwargs: Any
    ) -> None:
        if not half_life >= 1:
            raise ValueError(f"half_life={half_life!r}: pass a number of rows, 1 or more; inf is plain XBN")
        super().__init__(match_std, momentum, **kwargs)
        self.half_life = half_life

    def _adapted(self, rows: Rows, given: Given) -> Rows:
        weighted = rows.without_rounding(self._weighted(rows, given.of_memory))
        # No row is further away than the moments of all of them tell.
        return rows.adapted(rows.bounded(self.map(weighted, given.target), given.of_memory))

    def _weighted(self, rows: Rows, of_memory: Moments) -> Moments:
        """E_w[R] and σ_w[R], in one pass over the rows."""
        ages = (rows.boundary - 1 - torch.arange(len(rows), device=of_memory.mean.device)) % len(rows)
        weights = torch.exp2(-ages.to(of_memory.mean) / self.half_life)
        total = weights.sum()
        first, second = torch.zeros_like(of_memory.mean), torch.zeros_like(of_memory.mean)
        for part, values in rows.parts(rows.dtype):
            offsets = widest(values) - of_memory.mean  # lest a far mean swamp the spread
            first = first + weights[part] @ offsets
            second = second + weights[part] @ offsets.square()
        mean = first / total
        squares = (second - total * mean.square()).clamp(min=0)
        return Moments(of_memory.mean + mean, (squares / (total - weights.square().sum() / total)).sqrt())
