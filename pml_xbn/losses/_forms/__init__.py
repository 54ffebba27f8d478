"""PML's losses as functions of one matrix; one file per loss, and a line in ``FORMS``."""

from __future__ import annotations

from pytorch_metric_learning import losses

from .contrastive import contrastive
from .form import Form
from .pairs import Pairs
from .supcon import supcon

__all__ = ["FORMS", "Form", "Pairs"]

FORMS: dict[type, Form] = {
    losses.ContrastiveLoss: Form(contrastive),
    losses.SupConLoss: Form(supcon, needs_both_kinds=True),
}
