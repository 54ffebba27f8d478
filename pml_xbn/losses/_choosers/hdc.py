"""HDCMiner (https://arxiv.org/abs/1611.05720): the hardest of all pairs."""

from __future__ import annotations

import math

import torch
from pytorch_metric_learning.miners import HDCMiner
from torch import Tensor

from .._choice import Choice
from .candidates import Candidates


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
    least = values.kthvalue(len(values) - k + 1).values
    chosen = pairs & (mat > least)
    equal = (pairs & (mat == least)).flatten().nonzero()
    chosen.view(-1)[equal[: k - int(chosen.count_nonzero())]] = True
    return chosen
