"""PairMarginMiner: pairs beyond a margin."""

from __future__ import annotations

import torch
from pytorch_metric_learning.miners import PairMarginMiner

from .._choice import Choice
from .candidates import Candidates


def pair_margin(miner: PairMarginMiner, candidates: Candidates) -> Choice:
    mat, (positive, negative, _) = candidates.mat(miner), candidates.pairs
    is_far = torch.lt if miner.distance.is_inverted else torch.gt
    is_near = torch.gt if miner.distance.is_inverted else torch.lt
    # A matrix of bool at a time: with many rows each is an eighth of theirs in half precision.
    positive.logical_and_(is_far(mat, miner.pos_margin))
    negative.logical_and_(is_near(mat, miner.neg_margin))
    return Choice(positive, negative)
