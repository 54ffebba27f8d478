"""The one place where a loss of PML is computed against stored rows."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.losses import GenericPairLoss
from torch import Tensor

from .._dtypes import at_least_float32
from ..adapters._rows import Rows
from ._choice import Choice, all_pairs
from ._choosers import CHOOSERS, Candidates
from ._cosines import Distances
from ._forms import FORMS, Form, Pairs
from ._indices import IndicesTuple, appended
from ._pairs import chosen_pairs
from ._rules import rules_of
from ._shares import Share
from ._slices import fractions
from ._twins import has_hooks, is_as_built, twin_of
from ._validation import check_scalar

# Of which the distance of an anchor does not depend on the others.
_DISTANCES = (
    pml_distances.CosineSimilarity,
    pml_distances.DotProductSimilarity,
    pml_distances.LpDistance,
    pml_distances.SNRDistance,
)


def loss_against(
    loss: Any,
    miner: Any,
    anchors: Tensor,
    anchor_labels: Tensor,
    rows: Rows,
    row_labels: Tensor,
    own_rows: Tensor | None = None,
    given: IndicesTuple | None = None,
) -> Tensor:
    """The loss of these anchors against these rows.

    PML's own losses and miners are functions of one matrix here. A loss or miner of the user's own is called
    with all rows. Nothing is changed in loss, miner or PML, but for what these note themselves.

    Args:
        loss: any that a memory supports.
        miner: chooses among the pairs; default all.
        anchors: ``(a, d)``, with gradient; a > 0.
        anchor_labels: ``(a,)``.
        rows: ``(n, d)``; n > 0.
        row_labels: ``(n,)``.
        own_rows: row of every anchor's own copy, ``(a,)``, which it is not compared with; None where it has
            none.
        given: pairs or triplets of anchors and rows besides.
    """
    distances, form = Distances(anchors, rows), form_of(loss)
    is_seen = form is None or has_hooks(loss)  # who is called sees index tensors, and the rows
    are_listed = is_seen or given is not None
    choice, lists = None, None
    if _can_choose(miner):
        choice = _choice(miner, distances, anchor_labels, row_labels, own_rows)
        lists = choice.lists() if are_listed else None
    else:
        lists = chosen_pairs(miner, distances, anchor_labels, row_labels, own_rows)
    if given is not None:
        assert lists is not None
        choice, lists = None, appended(lists, given, anchor_labels)
    row_tensor = distances.row_tensor if is_seen else distances.placeholder
    if form is None:
        value: Tensor = loss(anchors, anchor_labels, lists, row_tensor, row_labels)
        return value
    if choice is None:
        assert lists is not None
        choice = Choice.of_lists(lists, (len(anchors), len(row_labels)))
        if hasattr(loss, "_assert_either_pos_or_neg") and loss.loss_method == loss.mat_based_loss:
            loss._assert_either_pos_or_neg(*choice[:2])  # since PML 2.9
    of_forms: list[Tensor] = []

    arguments = anchors, anchor_labels, lists, row_tensor, row_labels

    def left(*given: Any) -> Any:
        """What PML's reducer is to reduce."""
        if any(one is not other for one, other in zip(given, arguments, strict=True)):  # by a hook
            return type(loss).compute_loss(loss, *given)
        pairs = _pairs(loss, form, choice, distances, anchor_labels, row_labels, own_rows)
        share = _share(loss, form, pairs)
        of_forms.append(share.loss(loss))
        return form.also(loss, pairs) if form.also is not None else {}

    def reduced(infos: dict[str, Any], embeddings: Tensor, labels: Tensor) -> Tensor:
        parts = [*of_forms, loss.reducer(infos, embeddings, labels)] if infos else of_forms
        return sum(parts[1:], start=parts[0])

    # Neither function knows the twin, which knows them: a cycle would keep the matrices for long.
    twin = twin_of(loss, compute_loss=left, reducer=reduced)
    return twin(*arguments)  # type: ignore[no-any-return]


def loss_and_row_gradient(
    loss: Any,
    miner: Any,
    anchors: Tensor,
    anchor_labels: Tensor,
    rows: Rows,
    row_labels: Tensor,
    own_rows: Tensor | None = None,
    given: IndicesTuple | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss of these anchors against these rows, and its gradient with respect to the rows, ``(n, d)``.

    The arguments are those of :func:`loss_against`. The loss is called with all rows, whose gradient costs
    a backward pass of its own.
    """
    distances = Distances(anchors, rows)
    lists = chosen_pairs(miner, distances, anchor_labels, row_labels, own_rows)
    if given is not None:
        lists = appended(lists, given, anchor_labels)
    leaf = distances.row_tensor.requires_grad_()
    value: Tensor = loss(anchors, anchor_labels, lists, leaf, row_labels)
    check_scalar(value, loss)
    if not value.requires_grad:
        return value, torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(
        value, leaf, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    leaf.requires_grad_(False)  # the caller's backward pass leaves no gradient there
    return value, gradient


def share_against(
    loss: Any,
    miner: Any,
    anchors: Tensor,
    anchor_labels: Tensor,
    rows: Rows,
    row_labels: Tensor,
    own_rows: Tensor | None = None,
    given: IndicesTuple | None = None,
) -> Share:
    """What these anchors add to a loss that :func:`can_be_shared`; the arguments of :func:`loss_against`."""
    distances, form = Distances(anchors, rows), FORMS[type(loss)]
    choice = _choice(miner, distances, anchor_labels, row_labels, own_rows)
    if given is not None:
        lists = appended(choice.lists(), given, anchor_labels)
        choice = Choice.of_lists(lists, (len(anchors), len(row_labels)))
    return _share(loss, form, _pairs(loss, form, choice, distances, anchor_labels, row_labels, own_rows))


def can_be_shared(loss: Any, miner: Any) -> bool:
    """Whether every rank can compute the terms of its own anchors, without seeing those of the others."""
    form = form_of(loss)
    return (
        form is not None
        and form.is_by_anchor
        and form.weights is None
        and _can_choose(miner)
        and (miner is None or CHOOSERS[type(miner)].is_by_anchor)
        and all(type(part.distance) in _DISTANCES for part in (loss, miner) if part is not None)
        and not has_hooks(loss)
        # The same on all ranks, whatever their anchors.
        and not getattr(loss, "learn_beta", False)
        and not loss.embedding_regularizer
    )


def form_of(loss: Any) -> Form | None:
    """The loss as a function of one matrix; None where nobody could tell what somebody has changed in it."""
    form = FORMS.get(type(loss))
    if form is None or not is_as_built(loss) or loss.collect_stats or loss.distance.collect_stats:
        return None
    if isinstance(loss, GenericPairLoss) and loss.loss_method not in (
        loss.mat_based_loss,
        loss.pair_based_loss,
    ):
        return None
    if form.takes_triplets and type(loss.distance).margin is not BaseDistance.margin:
        return None  # triplets are sorted by the plain difference
    rules = rules_of(loss)
    if rules is None:
        return None
    for rule in rules.values():
        # PML multiplies a column with a row of class weights.
        if (rule.class_weights is not None and form.is_column) or (
            rule.divisor == "of loss" and not form.has_divisor
        ):
            return None
    return form


def _can_choose(miner: Any) -> bool:
    """Whether :func:`_choice` is the miner's, and nobody can tell that it was not called."""
    if miner is None:
        return True
    chooser = CHOOSERS.get(type(miner))
    if chooser is None:
        return False
    has_statistics = miner.collect_stats or miner.distance.collect_stats
    return chooser.applies(miner) and not has_statistics and is_as_built(miner) and not has_hooks(miner)


def _choice(
    miner: Any, distances: Distances, labels: Tensor, row_labels: Tensor, own_rows: Tensor | None
) -> Choice:
    choice = all_pairs(labels, row_labels, own_rows)
    if miner is None:
        return choice
    with torch.no_grad():
        candidates = Candidates(choice, distances, labels, row_labels, own_rows)
        choice = CHOOSERS[type(miner)].choose(miner, candidates)
    # It counts what it has chosen.
    num_positive, num_negative = choice.num_pairs()
    if choice.triplets is None:
        miner.output_assertion([range(num_positive)] * 2 + [range(num_negative)] * 2)
    else:
        miner.output_assertion([range(num_positive)] * 3)
    return choice


def _pairs(
    loss: Any,
    form: Form,
    choice: Choice,
    distances: Distances,
    labels: Tensor,
    row_labels: Tensor,
    own_rows: Tensor | None,
) -> Pairs:
    mat = at_least_float32(form.matrix(loss, distances))
    weights = None if form.weights is None else form.weights(choice)
    return Pairs(mat, choice, labels, row_labels, distances, own_rows, weights)


def _share(loss: Any, form: Form, pairs: Pairs) -> Share:
    rules = rules_of(loss)
    assert rules is not None
    return Share(*fractions(loss, form, rules, pairs), pairs.choice.num_pairs())
