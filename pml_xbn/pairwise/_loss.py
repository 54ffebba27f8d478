"""The loss of anchors against stored rows: by its form, a part at a time, or by PML's own code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._arithmetic import slices
from ._angular import angular_terms
from ._comparison import Comparison
from ._distances import Distances
from ._finite import nan_unless_zero
from ._known_gradients import KnownGradients
from ._loss_sums import LossSums
from ._pairs import Pairs, anchors_at_once
from ._recipes import Recipe, recipe_of
from ._reductions import of_all_rows, total
from ._runs import Runs


def loss_against(compared: Comparison) -> Tensor:
    """Returns the loss of the anchors against the rows, a scalar if the loss's reducer returns one."""
    recipe = recipe_of(compared.loss)
    if recipe is None:
        return _compute_by_pml(compared)
    if compared.loss._forward_hooks:  # which only look, at what is computed of the same pairs
        leaf = compared.anchors.detach().requires_grad_(compared.anchors.requires_grad)
        distances = Distances(leaf, compared.rows)
        compared = compared._replace(chosen=compared.choose_pairs(distances))
    sums = sum_terms(compared, recipe)
    if compared.loss._forward_hooks:
        device = compared.anchors.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            _compute_by_pml(compared)
    return KnownGradients.apply(sums.value(), *sums.inputs)  # type: ignore[no-any-return]


def sum_terms(compared: Comparison, recipe: Recipe) -> LossSums:
    """Returns the sums of the anchors' terms of a loss, by its recipe."""
    loss, form = compared.loss, recipe.form
    sums = LossSums(loss, recipe, compared.anchors)
    distances = Distances(sums.leaf, compared.rows)
    pairs = compared.choose_pairs(distances)
    sums.num_pairs = pairs.num_pairs or [total(counts) for counts in pairs[:2]]
    if form.terms is None:
        _add_angular_terms(sums, compared, pairs)
        sums.zero = distances.zero_if_finite()
        return sums
    mat = distances.measured(loss.distance)
    sums.zero = distances.zero_if_finite()
    _check_kinds(loss, pairs)
    at_once = _anchors_at_once(loss, recipe, pairs, mat)
    if at_once >= len(mat) and len(recipe.reducers) == 1:
        sums.add(of_all_rows(form.terms(loss, mat, pairs)), sums.leaf)
        return sums
    _add_in_parts(sums, compared, recipe, pairs, mat, at_once)
    return sums


def _add_in_parts(
    sums: LossSums, compared: Comparison, recipe: Recipe, pairs: Pairs, mat: Tensor, at_once: int
) -> None:
    """Adds the terms of some anchors after the other, from their part of the matrix."""
    assert recipe.form.terms is not None
    sums.whole = mat  # to which the gradients of many parts are added, before one goes on
    for places in slices(len(mat), at_once):
        part, chosen = (mat, pairs) if at_once >= len(mat) else (mat[places], pairs.at(places))
        leaf = part.detach().requires_grad_(mat.requires_grad)
        sums.add(of_all_rows(recipe.form.terms(compared.loss, leaf, chosen)), leaf, places)


def _add_angular_terms(sums: LossSums, compared: Comparison, pairs: Pairs) -> None:
    sums.begin()
    for elements in angular_terms(compared.loss, sums.leaf, compared.rows, pairs):
        sums.add({"loss": elements}, sums.leaf)


def _check_kinds(loss: Any, pairs: Pairs) -> None:
    """Lets PML refuse lists of pairs of one kind alone, as it has done since 2.9."""
    is_listed = pairs.num_pairs is None and pairs.positive.dtype != torch.bool
    is_checked = hasattr(loss, "_assert_either_pos_or_neg")
    if is_listed and is_checked and loss.loss_method == loss.mat_based_loss:
        loss._assert_either_pos_or_neg(*pairs[:2])


def _anchors_at_once(loss: Any, recipe: Recipe, pairs: Pairs, mat: Tensor) -> int:
    """Returns for how many anchors the terms are computed at once: all, if they cannot be cut."""
    if not (recipe.is_by_anchor and (pairs.triplets is None or isinstance(pairs.triplets, Runs))):
        return len(mat)
    num_listed = mat.shape[1]
    if getattr(loss, "smooth_loss", False):  # lists triplets
        num_listed *= int(pairs.masks()[0].sum(dim=1).max())
    return anchors_at_once(num_listed, mat.device)


def _compute_by_pml(compared: Comparison) -> Tensor:
    """Returns the loss by its own code, which gets index tensors and a tensor of rows."""
    distances = Distances(compared.anchors, compared.rows)
    lists = compared.choose_pairs(distances).lists()
    rows = compared.rows.read(compared.anchors.dtype)
    value: Tensor = compared.loss(compared.anchors, compared.anchor_labels, lists, rows, compared.row_labels)
    return nan_unless_zero(value, distances.zero_if_finite())  # type: ignore[no-any-return]
