"""What PML's miners choose; one file per miner, and a line in ``CHOOSERS``."""

from __future__ import annotations

from pytorch_metric_learning import miners

from .angular import angular
from .batch_easy_hard import batch_easy_hard, batch_hard
from .candidates import Candidates
from .chooser import Chooser
from .distance_weighted import distance_weighted
from .hdc import chooses_among_all, hdc
from .multi_similarity import multi_similarity
from .pair_margin import pair_margin
from .triplet_margin import triplet_margin
from .uniform_histogram import uniform_histogram

__all__ = ["CHOOSERS", "Candidates", "Chooser"]

CHOOSERS: dict[type, Chooser] = {
    miners.BatchEasyHardMiner: Chooser(batch_easy_hard),
    miners.BatchHardMiner: Chooser(batch_hard),
    miners.DistanceWeightedMiner: Chooser(distance_weighted),
    miners.HDCMiner: Chooser(hdc, is_by_anchor=False, applies=chooses_among_all),
    miners.MultiSimilarityMiner: Chooser(multi_similarity),
    miners.UniformHistogramMiner: Chooser(uniform_histogram, is_by_anchor=False),
    miners.AngularMiner: Chooser(angular),
    miners.PairMarginMiner: Chooser(pair_margin),
    miners.TripletMarginMiner: Chooser(triplet_margin),
}
