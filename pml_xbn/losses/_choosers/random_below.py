"""Random integers."""

from __future__ import annotations

import torch
from torch import Tensor

from ..._dtypes import widest


def random_below(bounds: Tensor) -> Tensor:
    """For every bound an integer, uniform among 0 .. bound - 1; 0 for 0."""
    bounds = widest(bounds)
    return (torch.rand_like(bounds) * bounds).long()
