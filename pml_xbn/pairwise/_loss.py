"""The loss of anchors against stored rows: which way it is computed, and each of the ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning.losses import AngularLoss, LiftedStructureLoss, MarginLoss, TripletMarginLoss
from pytorch_metric_learning.miners import (
    BatchEasyHardMiner,
    BatchHardMiner,
    MultiSimilarityMiner,
    PairMarginMiner,
)
from torch import Tensor

from .._parts import slices
from ..memory._rows import Rows
from ._by_pml import parts_by_pml
from ._distances import Distances
from ._forms import FORMS, Recipe, recipe_of
from ._indices import IndicesTuple
from ._miners import is_function_of_pairs, mined
from ._over_rows import OverRows
from ._pairs import Pairs
from ._plain import is_plain, is_watched
from ._share import Part, Share

# Several matrices of that size are to fit into a CPU's cache.
_PAIRS_AT_ONCE = {"cpu": 2**19, "gpu": 2**24}

# Of which an anchor's terms follow from reductions over its rows.
SHARDED_LOSSES = tuple(
    kind for kind in FORMS if kind not in (AngularLoss, LiftedStructureLoss, MarginLoss, TripletMarginLoss)
)
SHARDED_MINERS = (BatchEasyHardMiner, BatchHardMiner, MultiSimilarityMiner, PairMarginMiner)

# Of which the distance of an anchor does not depend on the others.
_DISTANCES = (
    pml_distances.CosineSimilarity,
    pml_distances.DotProductSimilarity,
    pml_distances.LpDistance,
    pml_distances.SNRDistance,
)


class Comparison(NamedTuple):
    """Anchors and rows, and the loss of them.

    Attributes:
        loss: any that a memory supports.
        miner: chooses among the pairs; default all.
        anchors: ``(a, d)``, with gradient; a > 0.
        anchor_labels: ``(a,)``.
        rows: ``(n, d)``; n > 0.
        row_labels: ``(n,)``.
        own_rows: row of every anchor's own copy, ``(a,)``, which it is not compared with; None where it has
            none.
        given: pairs or triplets of anchors and rows besides.
        over_rows: reductions over the rows.
    """

    loss: Any
    miner: Any
    anchors: Tensor
    anchor_labels: Tensor
    rows: Rows
    row_labels: Tensor
    own_rows: Tensor | None = None
    given: IndicesTuple | None = None
    over_rows: OverRows = OverRows()

    def chosen(self, distances: Distances) -> Pairs:
        """Returns what the miner chooses of all pairs, and what is given besides."""
        pairs = Pairs.all(self.anchor_labels, self.row_labels, self.own_rows, self.over_rows)
        if self.miner is not None:
            pairs = mined(self.miner, distances, pairs)
        return pairs if self.given is None else pairs.and_given(self.given)


def loss_against(compared: Comparison) -> Tensor:
    """Returns the loss of the anchors against the rows, a scalar if the loss's reducer returns one."""
    recipe = recipe_of(compared.loss)
    if recipe is None:
        return _value_by_pml(compared)
    value = share_against(compared, recipe).value()
    if is_watched(compared.loss):  # for hooks that only look, once more
        device = compared.anchors.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            _value_by_pml(compared)
    return value


def chosen_pairs(compared: Comparison) -> IndicesTuple:
    """Returns what the miner chooses as index tensors, pairs or triplets."""
    return compared.chosen(Distances(compared.anchors, compared.rows)).lists()


def _value_by_pml(compared: Comparison) -> Tensor:
    """Returns the loss by its own code, which gets index tensors and a tensor of rows."""
    distances = Distances(compared.anchors, compared.rows)
    lists, rows = compared.chosen(distances).lists(), distances.row_tensor
    value: Tensor = compared.loss(compared.anchors, compared.anchor_labels, lists, rows, compared.row_labels)
    return value


def recipe_to_share(loss: Any, miner: Any) -> Recipe | None:
    """Returns the recipe if every rank can compute the terms of its own anchors, without the others'."""
    recipe = recipe_of(loss)
    can_be_shared = (
        recipe is not None
        and not is_watched(loss)
        and recipe.form.is_by_anchor
        and (miner is None or is_function_of_pairs(miner))
        and all(type(part.distance) in _DISTANCES for part in (loss, miner) if part is not None)
        # The same on all ranks, whatever their anchors.
        and not getattr(loss, "learn_beta", False)
        and not loss.embedding_regularizer
    )
    return recipe if can_be_shared else None


def can_be_sharded(loss: Any, miner: Any) -> bool:
    """Returns whether the rows may be spread over ranks, all of which have all anchors."""
    return (
        recipe_of(loss) is not None
        and not is_watched(loss)
        and type(loss) in SHARDED_LOSSES
        and (miner is None or (type(miner) in SHARDED_MINERS and is_plain(miner)))
        and all(type(part.distance) in _DISTANCES for part in (loss, miner) if part is not None)
        and not loss.embedding_regularizer
    )


def share_against(compared: Comparison, recipe: Recipe) -> Share:
    """Returns what the anchors add to a loss, by its recipe."""
    loss, anchors = compared.loss, compared.anchors
    leaf = anchors.detach().requires_grad_(anchors.requires_grad and torch.is_grad_enabled())
    distances = Distances(leaf, compared.rows)
    pairs = compared.chosen(distances)
    is_smooth = getattr(loss, "smooth_loss", False)
    if is_smooth and pairs.window is not None:
        pairs = pairs.listed(pairs.lists())
    if isinstance(loss, AngularLoss) or (is_smooth and pairs.triplets is None):
        (rule,) = recipe.rules.values()
        parts = parts_by_pml(loss, rule, leaf, distances.row_tensor, pairs)
        return Share(loss, recipe, anchors, pairs, parts, leaf)
    mat = distances.measured(loss.distance)
    is_checked = hasattr(loss, "_assert_either_pos_or_neg")  # since PML 2.9
    if compared.given is not None and is_checked and loss.loss_method == loss.mat_based_loss:
        loss._assert_either_pos_or_neg(*pairs[:2])

    def pull(gradient: Tensor) -> Tensor:
        return torch.autograd.grad(mat, leaf, gradient)[0]

    return Share(loss, recipe, anchors, pairs, _parts(loss, recipe, mat, pairs), mat, pull)


def _parts(loss: Any, recipe: Recipe, mat: Tensor, pairs: Pairs) -> Iterator[Part]:
    """Yields the terms of some anchors at a time, so that their matrices stay in a CPU's cache."""
    form, rules = recipe
    assert form.terms is not None
    device = "cpu" if mat.device.type == "cpu" else "gpu"
    at_once = pairs.over_rows.anchors_at_once(mat.shape[1], _PAIRS_AT_ONCE[device])
    is_by_anchor = form.is_by_anchor and not getattr(loss, "learn_beta", False)
    if not is_by_anchor or pairs.triplets is not None:
        at_once = len(mat)
    for places in slices(len(mat), at_once):
        is_whole = at_once >= len(mat)
        chosen = pairs if is_whole else pairs.at(places)
        leaf = (mat if is_whole else mat[places]).detach().requires_grad_(mat.requires_grad)
        terms = form.terms(loss, leaf, chosen)
        fractions = [
            terms[name].fraction(rule, chosen.labels, chosen.over_rows) for name, rule in rules.items()
        ]
        yield Part(fractions, leaf, None if is_whole else places)
