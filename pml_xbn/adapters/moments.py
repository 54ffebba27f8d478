"""First and second moments of a set of embeddings."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._dtypes import at_least_float32, widest
from .affine import Affine


class Moments(NamedTuple):
    """Mean and standard deviation per embedding dimension: ``(d,)`` each, or ``(g, d)`` of groups."""

    mean: Tensor
    std: Tensor

    def to(self, other: Moments, match_std: bool = True) -> Affine:
        r"""Returns the map that gives rows of these moments those of ``other``.

        .. math:: \hat z = \frac{z - \mu}{\sigma} \sigma_{other} + \mu_{other}

        (Adaptive Cross Batch Normalization, Eq. 6.) A dimension in which σ is zero is only shifted; without
        ``match_std`` every one is.

        Example:
            >>> here = Moments(torch.tensor([1.0]), torch.tensor([2.0]))
            >>> here.to(Moments(torch.tensor([5.0]), torch.tensor([6.0])))
            Affine(scale=tensor([3.]), shift=tensor([2.]))
        """
        mean, std = (x.to(self.std) for x in other)
        if not match_std:
            return Affine(torch.ones_like(std), mean - self.mean)
        scale = (std / self.std).masked_fill_(self.std <= 0, 1.0)
        return Affine(scale, torch.addcmul(mean, self.mean, scale, value=-1))

    def without_rounding(self, least_std: Tensor) -> Moments:
        """Returns moments in which a spread of at most ``least_std``, which rounding alone makes, is zero."""
        return Moments(self.mean, self.std * (self.std > least_std))


def moments(rows: Tensor) -> Moments:
    """Returns the mean and the unbiased standard deviation of ``rows`` per dimension.

    A spread of a few rounding errors of the mean counts as zero.

    Args:
        rows: ``(n, d)``, at least two rows. Half precision is raised to float32.

    Example:
        >>> moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        Moments(mean=tensor([2., 5.]), std=tensor([1.4142, 0.0000]))
    """
    rows = at_least_float32(rows)
    mean = rows.mean(dim=0)
    centred = rows - mean  # not torch.var_mean, which takes ten times as long on a CPU
    std = centred.mul_(centred).sum(dim=0).div_(len(rows) - 1).sqrt_()
    return Moments(mean, std).without_rounding(mean.abs().mul_(8 * torch.finfo(rows.dtype).eps))


def match_moments(rows: Tensor, source: Moments, target: Moments) -> Tensor:
    r"""Returns ``rows`` mapped from the ``source`` moments to the ``target`` moments: :meth:`Moments.to`.

    Args:
        rows: ``(n, d)``.
        source: moments of ``rows``, ``(d,)`` each.
        target: moments to give them, ``(d,)`` each.

    Returns:
        A new tensor ``(n, d)`` of the dtype of ``rows``.

    Example:
        >>> rows = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
        >>> match_moments(rows, moments(rows), Moments(torch.zeros(2), torch.ones(2)))
        tensor([[-0.7071,  0.0000],
                [ 0.7071,  0.0000]])
    """
    return source.to(target).map(at_least_float32(rows)).to(rows.dtype)


class GroupSums(NamedTuple):
    """Row counts ``(g, 1)``, sums and sums of squares ``(g, d)`` of groups of rows, in float64."""

    num_rows: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, rows: Tensor, slots: Tensor, num_slots: int, rows_at_a_time: int = 2048) -> GroupSums:
        """Returns the sums of the rows ``(n, d)`` of every slot, numbers ``(n,)`` in [0, num_slots)."""
        count = slots.new_zeros(num_slots).index_add_(0, slots, torch.ones_like(slots)).unsqueeze(1)
        sums = widest(rows.new_zeros(2, num_slots, rows.shape[1]))
        for part, part_slots in zip(rows.split(rows_at_a_time), slots.split(rows_at_a_time), strict=True):
            wide = widest(part)
            sums[0].index_add_(0, part_slots, wide)
            sums[1].index_add_(0, part_slots, wide * wide if wide is part else wide.mul_(wide))
        return cls(count, *sums)

    def moments(self, noise: Tensor | float = 0.0) -> Moments:
        """Returns moments ``(g, d)``; σ of fewer than two rows reads 0.

        Args:
            noise: a sum of squared distances from the mean that counts as 0, ``(d,)``.
        """
        mean = self.first / self.num_rows.clamp(min=1)
        squares = torch.addcmul(self.second, self.first, mean, value=-1)
        squares.mul_(squares > noise)
        return Moments(mean, squares.div_((self.num_rows - 1).clamp(min=1)).sqrt_())
