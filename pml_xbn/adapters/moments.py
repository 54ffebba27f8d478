"""First and second moments of a set of embeddings."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._dtypes import at_least_float32
from .affine import Affine


class Moments(NamedTuple):
    """Mean and standard deviation per embedding dimension: ``(d,)`` each, or ``(g, d)`` of groups."""

    mean: Tensor
    std: Tensor

    def to(self, other: Moments, match_std: bool = True) -> Affine:
        r"""The map that gives rows of these moments those of ``other``.

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
        # A spread of a few rounding errors of the mean is none: dividing by it would blow rounding up to the
        # size of the other's.
        has_spread = self.std > 8 * torch.finfo(self.std.dtype).eps * self.mean.abs()
        scale = torch.where(has_spread, std / self.std, 1.0)
        return Affine(scale, mean - self.mean * scale)


def moments(rows: Tensor) -> Moments:
    """Mean and unbiased standard deviation of ``rows`` per dimension.

    Args:
        rows: ``(n, d)``, at least two rows. Half precision is raised to float32.

    Example:
        >>> moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        Moments(mean=tensor([2., 5.]), std=tensor([1.4142, 0.0000]))
    """
    rows = at_least_float32(rows)
    mean = rows.mean(dim=0)
    # In two passes: as exact as Welford's one, and on a CPU many times as fast.
    return Moments(mean, ((rows - mean).square().sum(dim=0) / (len(rows) - 1)).sqrt())


def match_moments(rows: Tensor, source: Moments, target: Moments) -> Tensor:
    r"""Maps ``rows`` from the ``source`` moments to the ``target`` moments: :meth:`Moments.to`.

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
    wide = at_least_float32(rows)
    affine = source.to(target).bounded(*source, len(rows), wide.dtype)
    return affine.map(wide).to(rows.dtype)
