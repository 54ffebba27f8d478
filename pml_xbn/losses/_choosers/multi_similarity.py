"""MultiSimilarityMiner (https://arxiv.org/abs/1904.06627): pairs beyond the hardest of the other kind."""

from __future__ import annotations

import torch
from pytorch_metric_learning.miners import MultiSimilarityMiner

from .._choice import Choice
from .candidates import Candidates


def multi_similarity(miner: MultiSimilarityMiner, candidates: Candidates) -> Choice:
    similarities, (positive, negative, _) = candidates.similarities(miner), candidates.pairs
    nearest_negative = similarities.masked_fill(~negative, -torch.inf).amax(dim=1, keepdim=True)
    farthest_positive = similarities.masked_fill(~positive, torch.inf).amin(dim=1, keepdim=True)
    return Choice(
        positive & (similarities - miner.epsilon < nearest_negative),
        negative & (similarities + miner.epsilon > farthest_positive),
    )
