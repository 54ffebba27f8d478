"""First and second moments of a set of embeddings, and the map that gives one set those of another."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Mean and standard deviation per embedding dimension, each of shape ``(d,)`` or ``(g, d)``."""

    mean: Tensor
    std: Tensor


def moments(rows: Tensor) -> Moments:
    """Mean and unbiased standard deviation of ``rows`` per dimension.

    Args:
        rows: ``(n, d)``, at least two rows. Half precision is raised to float32.

    Example:
        >>> moments(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        Moments(mean=tensor([2., 5.]), std=tensor([1.4142, 0.0000]))
    """
    variance, mean = torch.var_mean(at_least_float32(rows), dim=0, correction=1)
    return Moments(mean, variance.sqrt())


def match_moments(rows: Tensor, source: Moments, target: Moments) -> Tensor:
    r"""Maps ``rows`` from the ``source`` moments to the ``target`` moments.

    .. math:: \hat z = \frac{z - \mu_{source}}{\sigma_{source}} \sigma_{target} + \mu_{target}

    (Adaptive Cross Batch Normalization, Eq. 6.) A dimension in which :math:`\sigma_{source}` is zero is
    only shifted; one whose moments overflowed is left as it is. Finite rows stay finite.

    Args:
        rows: ``(n, d)``.
        source: moments of ``rows``, ``(d,)`` each, or ``(n, d)`` with one pair for every row.
        target: moments to give them, of the same shape.

    Returns:
        A new tensor ``(n, d)`` of the dtype of ``rows``.

    Example:
        >>> rows = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
        >>> match_moments(rows, moments(rows), Moments(torch.zeros(2), torch.ones(2)))
        tensor([[-0.7071,  0.0000],
                [ 0.7071,  0.0000]])
    """
    scale = scale_between(source, target)
    shiftable = torch.isfinite(source.mean) & torch.isfinite(target.mean)
    scale = torch.where(shiftable, scale, 1.0)
    source_mean = torch.where(shiftable, source.mean, 0.0)
    target_mean = torch.where(shiftable, target.mean, 0.0)
    return ((rows - source_mean) * scale + target_mean).to(rows.dtype)


def scale_between(source: Moments, target: Moments) -> Tensor:
    r""":math:`\sigma_{target} / \sigma_{source}`, and 1 where the rows have no spread to scale.

    A spread of a few rounding errors of the mean is none: dividing by it would blow rounding up to the
    size of :math:`\sigma_{target}`.
    """
    ratio = target.std / source.std
    has_spread = source.std > 8 * torch.finfo(source.std.dtype).eps * source.mean.abs()
    return torch.where(has_spread & torch.isfinite(ratio), ratio, 1.0)


def at_least_float32(rows: Tensor) -> Tensor:
    """``rows`` in float32, or in its own dtype where that is more precise."""
    return rows.to(torch.promote_types(rows.dtype, torch.float32))
