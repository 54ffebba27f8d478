"""TripletMarginMiner: triplets by how much farther away the negative is than the positive."""

from __future__ import annotations

from math import inf

from pytorch_metric_learning.miners import TripletMarginMiner

from ..._dtypes import at_least_float32
from .._choice import Choice
from .._counting import Order
from .._runs import Runs, apartness
from .candidates import Candidates


def triplet_margin(miner: TripletMarginMiner, candidates: Candidates) -> Choice:
    mat, (positive, negative, _) = apartness(miner.distance, candidates.mat(miner)), candidates.pairs
    low, high = {
        "hard": (-inf, min(0.0, miner.margin)),
        "semihard": (0.0, miner.margin),
        "easy": (miner.margin, inf),
    }.get(miner.type_of_triplets, (-inf, miner.margin))
    mat = at_least_float32(mat)
    runs = Runs(positive, negative, miner.distance, mat, Order.of(mat), low, high)
    return Choice(*runs.counts(), runs)
