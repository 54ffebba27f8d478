"""First and second moments of a set of embeddings, and the map that gives one set those of another."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Mean and standard deviation per embedding dimension, each of shape ``(d,)`` or ``(g, d)``."""

    mean: Tensor
    std: Tensor


class Affine(NamedTuple):
    """The map z → z · scale + shift per embedding dimension, each of shape ``(d,)`` or ``(g, d)``."""

    scale: Tensor
    shift: Tensor

    def map(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """The mapped rows ``(n, d)``, in one pass over them."""
        return torch.addcmul(self.shift, rows, self.scale, out=out)


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
    r"""Maps ``rows`` from the ``source`` moments to the ``target`` moments.

    .. math:: \hat z = \frac{z - \mu_{source}}{\sigma_{source}} \sigma_{target} + \mu_{target}

    (Adaptive Cross Batch Normalization, Eq. 6.)

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
    return affine_between(source, target, len(rows), wide.dtype).map(wide).to(rows.dtype)


def affine_between(source: Moments, target: Moments, num_rows: int, dtype: torch.dtype) -> Affine:
    r"""Eq. 6 as one multiplication and one addition, for ``num_rows`` rows of ``dtype``.

    A dimension in which :math:`\sigma_{source}` is zero is only shifted. One in which the map of such
    rows could overflow is left as it is, so finite rows stay finite.
    """
    source, target = (Moments(widest(mean), widest(std)) for mean, std in (source, target))
    scale = _ratio(source, target, dtype)
    shift = target.mean - source.mean * scale
    # No row is further from the mean than this many standard deviations.
    reach = math.sqrt(max(num_rows, 1))
    farthest = (source.mean.abs() + reach * source.std) * scale + shift.abs()
    fits = (farthest < torch.finfo(dtype).max / 4) & torch.isfinite(shift)
    return Affine(torch.where(fits, scale, 1.0).to(dtype), torch.where(fits, shift, 0.0).to(dtype))


def std_ratio(source: Moments, target: Moments) -> Tensor:
    r""":math:`\sigma_{target} / \sigma_{source}`, and 1 where the rows have no spread to scale."""
    return _ratio(source, target, source.std.dtype)


def _ratio(source: Moments, target: Moments, dtype: torch.dtype) -> Tensor:
    # A spread of a few rounding errors of the mean is none: dividing by it would blow rounding up to the
    # size of the target's.
    ratio = target.std / source.std
    has_spread = source.std > 8 * torch.finfo(dtype).eps * source.mean.abs()
    return torch.where(has_spread & (ratio < torch.finfo(dtype).max / 4), ratio, 1.0)


def at_least_float32(rows: Tensor) -> Tensor:
    """``rows`` in float32, or in its own dtype where that is more precise."""
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def widest(values: Tensor) -> Tensor:
    """``values`` in float64, or in float32 on devices that know no float64."""
    return values.float() if values.device.type == "mps" else values.double()
