"""Scales with which rows are stored, so that the dtype holds them and those to come."""

from __future__ import annotations

import torch
from torch import Tensor

from .._dtypes import widest
from ..adapters.affine import Affine
from ..adapters.moments import Moments, moments

# In float16, a dimension begins with at least this share of the rows' root mean square as its scale, so that
# rows fit which come to a dimension in which all are nearly equal.
_LEAST_SHARE_OF_RMS = 2.0**-8

# A smaller spread is none: a batch's over it is to stay within float32.
_LEAST_STD = 2.0**-60


def fitting_scale(mean: Tensor, std: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a scale ``(d,)`` with which to store rows of these moments: σ, or in float16 a little more."""
    if dtype != torch.float16:
        return std
    rms = (mean.square() + std.square()).nan_to_num_(0, 0, 0).mean().sqrt()
    return torch.maximum(std, _LEAST_SHARE_OF_RMS * rms)


def first_map(values: Tensor, dtype: torch.dtype) -> Affine:
    """Returns the map to the first rows ``(n, d)`` of a memory from where they are stored, whitened."""
    wide = widest(values)
    mean, std = moments(wide) if len(wide) > 1 else Moments(wide[0], torch.zeros_like(wide[0]))
    rms, ones = (mean.square() + std.square()).mean().sqrt(), torch.ones_like(mean)
    without_spread = torch.where(rms > _LEAST_STD, rms, ones)
    scale = torch.where(std > _LEAST_STD, fitting_scale(mean, std, dtype), without_spread)
    return Affine(scale, mean).where_finite(Affine(ones, torch.zeros_like(mean)))
