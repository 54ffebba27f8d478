"""HDCMiner (https://arxiv.org/abs/1611.05720): the hardest of all pairs."""

from __future__ import annotations

import math

import torch
from pytorch_metric_learning.miners import HDCMiner
from torch import Tensor

from .._choice import Choice
from .candidates import Candidates

_NUM_BINS = 2**12


def hdc(miner: HDCMiner, candidates: Candidates) -> Choice:
    similarities, (positive, negative, _) = candidates.similarities(miner), candidates.pairs
    return Choice(
        _largest(-similarities, positive, miner.filter_percentage),
        _largest(similarities, negative, miner.filter_percentage),
    )


def chooses_among_all(miner: HDCMiner) -> bool:
    """Not among pairs that somebody has given it."""
    return not miner.was_set_externally


def _largest(mat: Tensor, pairs: Tensor, share: float) -> Tensor:
    """A share of the pairs, those with the largest values, ``(a, n)`` bool."""
    values = mat.masked_select(pairs)
    k = math.ceil(share * len(values))
    if k == 0:
        return torch.zeros_like(pairs)
    least = _kth_largest(values, k)
    chosen = pairs & (mat > least)
    equal = (pairs & (mat == least)).flatten().nonzero()
    chosen.view(-1)[equal[: k - int(chosen.count_nonzero())]] = True
    return chosen


def _kth_largest(values: Tensor, k: int) -> Tensor:
    """Of ``(m,)``; only those near it are sorted."""
    low, high = values.aminmax()
    bins = (high - values).div_(high - low).mul_(_NUM_BINS).int().clamp_(0, _NUM_BINS)
    ends = bins.bincount().cumsum(0)
    last = torch.searchsorted(ends, k)
    near = values.masked_select(bins == last)
    return near.sort(descending=True).values[k - 1 - ends[last] + len(near)]
