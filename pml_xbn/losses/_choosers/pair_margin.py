"""PairMarginMiner: pairs beyond a margin."""

from __future__ import annotations

from pytorch_metric_learning.miners import PairMarginMiner

from .._choice import Choice
from .candidates import Candidates


def pair_margin(miner: PairMarginMiner, candidates: Candidates) -> Choice:
    mat, (positive, negative, _) = candidates.mat(miner), candidates.pairs
    if miner.distance.is_inverted:
        return Choice(positive & (mat < miner.pos_margin), negative & (mat > miner.neg_margin))
    return Choice(positive & (mat > miner.pos_margin), negative & (mat < miner.neg_margin))
