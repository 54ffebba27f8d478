"""PML's losses as functions of one matrix; one file per loss, and a line in ``FORMS``."""

from __future__ import annotations

from pytorch_metric_learning import losses

from .angular import angular, products
from .circle import circle
from .contrastive import contrastive
from .form import Form
from .generalized_lifted_structure import generalized_lifted_structure
from .intra_pair_variance import intra_pair_variance
from .lifted_structure import lifted_structure
from .margin import margin, regularizer
from .multi_similarity import multi_similarity
from .nca import nca, shares_of_pairs
from .nt_xent import nt_xent
from .pairs import Pairs
from .supcon import supcon
from .triplet_margin import triplet_margin
from .tuplet_margin import tuplet_margin

__all__ = ["FORMS", "Form", "Pairs"]

FORMS: dict[type, Form] = {
    losses.CircleLoss: Form(circle, is_column=True),
    losses.ContrastiveLoss: Form(contrastive),
    losses.GeneralizedLiftedStructureLoss: Form(generalized_lifted_structure, is_column=True),
    losses.IntraPairVarianceLoss: Form(intra_pair_variance, is_by_anchor=False),
    losses.LiftedStructureLoss: Form(
        lifted_structure, is_column=True, is_by_anchor=False, needs_both_kinds=True
    ),
    losses.MultiSimilarityLoss: Form(multi_similarity, is_column=True),
    losses.NCALoss: Form(nca, weights=shares_of_pairs),
    losses.NTXentLoss: Form(nt_xent, needs_both_kinds=True),
    losses.SignalToNoiseRatioContrastiveLoss: Form(contrastive),
    losses.SupConLoss: Form(supcon, needs_both_kinds=True),
    losses.TupletMarginLoss: Form(tuplet_margin, is_column=True, needs_both_kinds=True),
    losses.AngularLoss: Form(
        angular, matrix=products, needs_both_kinds=True, is_sliced=False, is_column=True
    ),
    losses.MarginLoss: Form(margin, also=regularizer, has_divisor=True, takes_triplets=True),
    losses.TripletMarginLoss: Form(triplet_margin, takes_triplets=True),
}
