"""PML's losses as functions of one matrix; one file per loss, and a line in ``FORMS``."""

from __future__ import annotations

from pytorch_metric_learning import losses

from .angular import angular, products
from .contrastive import contrastive
from .form import Form
from .margin import margin, regularizer
from .pairs import Pairs
from .supcon import supcon
from .triplet_margin import triplet_margin

__all__ = ["FORMS", "Form", "Pairs"]

FORMS: dict[type, Form] = {
    losses.AngularLoss: Form(
        angular, matrix=products, needs_both_kinds=True, is_sliced=False, is_column=True
    ),
    losses.ContrastiveLoss: Form(contrastive),
    losses.MarginLoss: Form(margin, also=regularizer, has_divisor=True, takes_triplets=True),
    losses.SupConLoss: Form(supcon, needs_both_kinds=True),
    losses.TripletMarginLoss: Form(triplet_margin, takes_triplets=True),
}
