"""The one place where a loss of PML is computed against stored rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.losses import GenericPairLoss
from torch import Tensor

from .._dtypes import at_least_float32
from ..memory._rows import Rows
from ._choice import Choice, all_pairs
from ._choosers import CHOOSERS, Candidates
from ._cosines import Distances
from ._early_gradient import EarlyGradient
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
    """

    loss: Any
    miner: Any
    anchors: Tensor
    anchor_labels: Tensor
    rows: Rows
    row_labels: Tensor
    own_rows: Tensor | None = None
    given: IndicesTuple | None = None

    def labels(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of anchors and rows, and the anchors' own rows."""
        return self.anchor_labels, self.row_labels, self.own_rows

    def with_given(self, lists: IndicesTuple) -> IndicesTuple:
        return lists if self.given is None else appended(lists, self.given, self.anchor_labels)


def loss_against(compared: Comparison) -> Tensor:
    """The loss of the anchors against the rows.

    PML's own losses and miners are functions of one matrix here. A loss or miner of the user's own is called
    with all rows. Nothing is changed in loss, miner or PML, but for what these note themselves.
    """
    if form_of(compared.loss) is None:
        return _loss_of_pml(compared)
    if has_hooks(compared.loss):  # which see index tensors and rows, and may ask for gradients between
        return _loss_of_form(compared._replace(rows=compared.rows.frozen()), is_seen=True)
    early = EarlyGradient(compared.anchors, compared.loss)
    return early.attached_to(_loss_of_form(compared._replace(anchors=early.leaf)))


def _loss_of_pml(compared: Comparison) -> Tensor:
    """The loss by its own code, which gets index tensors and a tensor of rows."""
    distances = Distances(compared.anchors, compared.rows)
    if _can_choose(compared.miner):
        lists = _choice(compared, distances).lists()
    else:
        lists = chosen_pairs(compared.miner, distances, *compared.labels())
    lists, rows = compared.with_given(lists), distances.row_tensor
    value: Tensor = compared.loss(compared.anchors, compared.anchor_labels, lists, rows, compared.row_labels)
    return value


def _loss_of_form(compared: Comparison, *, is_seen: bool = False) -> Tensor:
    loss, miner, anchors, anchor_labels, rows, row_labels, _, given = compared
    distances, form = Distances(anchors, rows), form_of(loss)
    assert form is not None
    are_listed = is_seen or given is not None
    choice, lists = None, None
    if _can_choose(miner):
        choice = _choice(compared, distances)
        lists = choice.lists() if are_listed else None
    else:
        lists = chosen_pairs(miner, distances, *compared.labels())
    if given is not None:
        assert lists is not None
        choice, lists = None, compared.with_given(lists)
    row_tensor = distances.row_tensor if is_seen else distances.placeholder
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
        pairs = _pairs(compared, form, choice, distances)
        share = _share(loss, form, pairs)
        of_forms.append(share.loss(loss))
        return form.also(loss, pairs) if form.also is not None else {}

    def reduced(infos: dict[str, Any], embeddings: Tensor, labels: Tensor) -> Tensor:
        parts = [*of_forms, loss.reducer(infos, embeddings, labels)] if infos else of_forms
        return sum(parts[1:], start=parts[0])

    # Neither function knows the twin, which knows them: a cycle would keep the matrices for long.
    twin = twin_of(loss, compute_loss=left, reducer=reduced)
    return twin(*arguments)  # type: ignore[no-any-return]


def loss_and_row_gradient(compared: Comparison) -> tuple[Tensor, Tensor]:
    """The loss of the anchors against the rows, and its gradient with respect to the rows, ``(n, d)``.

    The loss is called with all rows, whose gradient costs a backward pass of its own.
    """
    distances, loss = Distances(compared.anchors, compared.rows), compared.loss
    lists = compared.with_given(chosen_pairs(compared.miner, distances, *compared.labels()))
    leaf = distances.row_tensor.requires_grad_()
    value: Tensor = loss(compared.anchors, compared.anchor_labels, lists, leaf, compared.row_labels)
    check_scalar(value, loss)
    if not value.requires_grad:
        return value, torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(
        value, leaf, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    leaf.requires_grad_(False)  # the caller's backward pass leaves no gradient there
    return value, gradient


def share_against(compared: Comparison) -> Share:
    """What the anchors add to a loss that :func:`can_be_shared`."""
    distances, form = Distances(compared.anchors, compared.rows), FORMS[type(compared.loss)]
    choice = _choice(compared, distances)
    if compared.given is not None:
        lists = compared.with_given(choice.lists())
        choice = Choice.of_lists(lists, (len(compared.anchors), len(compared.row_labels)))
    return _share(compared.loss, form, _pairs(compared, form, choice, distances))


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


def _choice(compared: Comparison, distances: Distances) -> Choice:
    miner, choice = compared.miner, all_pairs(*compared.labels())
    if miner is None:
        return choice
    with torch.no_grad():
        candidates = Candidates(choice, distances, *compared.labels())
        choice = CHOOSERS[type(miner)].choose(miner, candidates)
    # It counts what it has chosen.
    num_positive, num_negative = choice.num_pairs()
    if choice.triplets is None:
        miner.output_assertion([range(num_positive)] * 2 + [range(num_negative)] * 2)
    else:
        miner.output_assertion([range(num_positive)] * 3)
    return choice


def _pairs(compared: Comparison, form: Form, choice: Choice, distances: Distances) -> Pairs:
    mat = at_least_float32(form.matrix(compared.loss, distances))
    weights = None if form.weights is None else form.weights(choice)
    of_anchors, of_rows, own_rows = compared.labels()
    return Pairs(mat, choice, of_anchors, of_rows, distances, own_rows, weights)


def _share(loss: Any, form: Form, pairs: Pairs) -> Share:
    rules = rules_of(loss)
    assert rules is not None
    return Share(*fractions(loss, form, rules, pairs), pairs.choice.num_pairs())
