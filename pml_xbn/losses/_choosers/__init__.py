"""What PML's miners choose; one file per miner, and a line in ``CHOOSERS``."""

from __future__ import annotations

from pytorch_metric_learning import miners

from .angular import angular
from .candidates import Candidates
from .chooser import Chooser
from .pair_margin import pair_margin
from .triplet_margin import triplet_margin

__all__ = ["CHOOSERS", "Candidates", "Chooser"]

CHOOSERS: dict[type, Chooser] = {
    miners.AngularMiner: Chooser(angular),
    miners.PairMarginMiner: Chooser(pair_margin),
    miners.TripletMarginMiner: Chooser(triplet_margin),
}
