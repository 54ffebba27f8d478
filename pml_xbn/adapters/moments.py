"""First and second moments of a set of embeddings, and the map from some to others."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._arithmetic import at_least_float32
from .._tracing import is_in_compiled_step


class Affine(NamedTuple):
    """The map z → scale ∘ z + shift per embedding dimension: ``(d,)`` each, or ``(g, d)`` of groups.

    Example:
        >>> Affine(torch.tensor([2.0]), torch.tensor([1.0])).map(torch.tensor([[3.0]]))
        tensor([[7.]])
    """

    scale: Tensor
    shift: Tensor

    def map(self, rows: Tensor) -> Tensor:
        """Returns the mapped rows ``(n, d)`` in their dtype."""
        return torch.addcmul(self.shift.to(rows), rows, self.scale.to(rows))

    def after(self, first: Affine) -> Affine:
        """Returns the map that applies ``first`` and then this one."""
        return Affine(first.scale * self.scale, torch.addcmul(self.shift, first.shift, self.scale))

    def where_finite(self, other: Affine) -> Affine:
        """Returns this map, and ``other`` in dimensions in which this one holds NaN or inf."""
        is_finite = torch.isfinite(self.scale + self.shift)
        scale, shift = (torch.where(is_finite, x, y) for x, y in zip(self, other, strict=True))
        return Affine(scale, shift)


NO_SPREAD = 1e-12  # a standard deviation of this or less is rounding, whatever the mean


class Moments(NamedTuple):
    """Mean and standard deviation per embedding dimension: ``(d,)`` each, or ``(g, d)`` of groups."""

    mean: Tensor
    std: Tensor

    def affine_to(self, other: Moments, match_std: bool = True) -> Affine:
        """Returns the map that gives rows of these moments those of ``other``.

        It is Eq. 6 of Adaptive Cross Batch Normalization. A dimension whose σ is 10⁻¹² or less is shifted and
        not scaled. Without ``match_std`` no dimension is scaled. Where σ of ``other`` is 0 all rows become
        equal, even where their own σ was too small to be told from rounding.

        Example:
            >>> here = Moments(torch.tensor([1.0]), torch.tensor([2.0]))
            >>> here.affine_to(Moments(torch.tensor([5.0]), torch.tensor([6.0])))
            Affine(scale=tensor([3.]), shift=tensor([2.]))
        """
        mean, std = other.mean.to(self.std), other.std.to(self.std)
        if not match_std:
            return Affine(torch.ones_like(std), mean - self.mean)
        scale = torch.where(self.std > NO_SPREAD, std / self.std, std.sign())
        return Affine(scale, torch.addcmul(mean, self.mean, scale, value=-1))


def moments(rows: Tensor) -> Moments:
    """Returns the mean and the unbiased standard deviation of two or more rows ``(n, d)`` per dimension.

    A spread of a few rounding errors of the mean counts as zero. Half precision is raised to float32, other
    dtypes stay.

    Example:
        >>> moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        Moments(mean=tensor([2., 5.]), std=tensor([1.4142, 0.0000]))
    """
    rows, num_rows = at_least_float32(rows), rows.shape[0]
    mean, squares = _mean_and_squares(rows)
    least = num_rows * (8 * torch.finfo(rows.dtype).eps) ** 2
    squares = torch.addcmul(squares, mean, mean, value=-least).clamp_min_(0)
    return Moments(mean, squares.div_(num_rows - 1).sqrt_())


def _mean_and_squares(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean of rows ``(n, d)``, and the sum of the squared differences from it."""
    if is_in_compiled_step():  # which makes one pass of it; differences from a row lose no digits
        differences, num_rows = rows - rows[0], rows.shape[0]
        total, squares = differences.sum(dim=0), differences.square().sum(dim=0)
        mean = total / num_rows
        return rows[0] + mean, torch.addcmul(squares, total, mean, value=-1)
    mean = rows.mean(dim=0)
    centred = rows - mean  # not torch.var_mean, which takes ten times as long on a CPU
    return mean, centred.mul_(centred).sum(dim=0)


def match_moments(rows: Tensor, source: Moments, target: Moments) -> Tensor:
    """Returns the rows, scaled and shifted from the moments ``source`` to the moments ``target``.

    Args:
        rows: ``(n, d)`` of any floating dtype, which the result has too.
        source: the moments of the rows, ``(d,)`` each; usually ``moments(rows)``.
        target: the moments that the result has, ``(d,)`` each.

    Example:
        >>> rows = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
        >>> match_moments(rows, moments(rows), Moments(torch.zeros(2), torch.ones(2)))
        tensor([[-0.7071,  0.0000],
                [ 0.7071,  0.0000]])
    """
    return source.affine_to(target).map(at_least_float32(rows)).to(rows.dtype)


class Groups(NamedTuple):
    """Groups of rows that the batch holds."""

    number: int  # g, or more where some groups are empty
    of_memory: Tensor  # (n,), the group of every row, from 0 to g; g stands for groups that the batch lacks
    of_batch: Tensor  # (b,), from 0 to g - 1


class GroupMoments(NamedTuple):
    """Of g groups of rows how many there are, ``(g, 1)``, and their moments, ``(g, d)`` each."""

    sizes: Tensor
    moments: Moments


def group_moments(rows: Tensor, group_ids: Tensor, num_groups: int) -> GroupMoments:
    """Returns the number and the moments of the rows of every group of rows ``(n, d)``.

    ``group_ids`` ``(n,)`` holds the group of every row, from 0 to g − 1, or g for rows that belong to none.
    The standard deviation of a group of one row is 0.
    """

    def total(values: Tensor) -> Tensor:
        return values.new_zeros(num_groups + 1, values.shape[1]).index_add_(0, group_ids, values)

    count = total(rows.new_ones(len(rows), 1))
    mean = total(rows) / count.clamp(min=1)
    squares = total((rows - mean[group_ids]).square_())
    squares *= torch.addcmul(squares, mean, mean * count, value=-((8 * torch.finfo(rows.dtype).eps) ** 2)) > 0
    std = squares.div_((count - 1).clamp_(min=1)).sqrt_()
    return GroupMoments(count[:num_groups], Moments(mean[:num_groups], std[:num_groups]))
