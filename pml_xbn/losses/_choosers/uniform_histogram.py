"""UniformHistogramMiner: as many pairs at every distance that there is."""

from __future__ import annotations

import torch
from pytorch_metric_learning.miners import UniformHistogramMiner
from torch import Tensor

from .._choice import Choice
from .candidates import Candidates
from .random_below import random_below


def uniform_histogram(miner: UniformHistogramMiner, candidates: Candidates) -> Choice:
    mat, (positive, negative, _) = candidates.mat(miner), candidates.pairs
    positives = _drawn(mat, positive, miner.num_bins, miner.pos_per_bin)
    negatives = _drawn(mat, negative, miner.num_bins, miner.neg_per_bin)
    return Choice.of_lists((*positives, *negatives), (mat.shape[0], mat.shape[1]))


def _drawn(mat: Tensor, pairs: Tensor, num_bins: int, num_per_bin: int) -> tuple[Tensor, Tensor]:
    """Anchors and rows of so many pairs from every bin that holds some, with replacement."""
    places = pairs.flatten().nonzero().squeeze(1)
    if len(places) > 0:
        bins = bins_of(mat.take(places), num_bins)
        order, counts = bins.argsort(), bins.bincount()
        counts = counts[counts > 0]
        firsts = counts.cumsum(0) - counts
        draws = firsts + random_below(counts.expand(num_per_bin, -1))
        places = places[order[draws.flatten()]]
    return places // mat.shape[1], places % mat.shape[1]


def bins_of(values: Tensor, num_bins: int) -> Tensor:
    """In which of the equal bins between the smallest and the largest every value is, ``(k,)``."""
    low, high = values.aminmax()
    edges = torch.linspace(low, high, num_bins + 1, dtype=values.dtype, device=values.device)
    bins = (values - low).div_(high - low).mul_(num_bins).int().clamp_(0, num_bins - 1)
    # Rounding takes a value no farther than across an edge.
    bins -= (values < edges.index_select(0, bins)).int()
    edges[-1] = torch.inf
    bins += (values >= edges[1:].index_select(0, bins)).int()
    return bins.to(torch.uint8) if num_bins <= 2**8 else bins  # which are sorted by their digits
