"""The loss of anchors against stored rows: which way it is computed, and each of the ways."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.losses import AngularLoss, GenericPairLoss
from pytorch_metric_learning.reducers import (
    ClassWeightedReducer,
    DivisorReducer,
    DoNothingReducer,
    SumReducer,
)
from torch import Tensor

from .._parts import slices
from ..memory._rows import Rows
from ._distances import Distances
from ._forms import Recipe, Terms, recipe_of
from ._miners import mined
from ._pairs import IndicesTuple, Pairs, listed
from ._plain import has_hooks
from ._reductions import Elements, OverRows

_PAIRS_AT_ONCE_BY_PML = {"cpu": 2**22, "gpu": 2**26}


class Comparison(NamedTuple):
    """Anchors and rows, at least one of each, and the loss of them."""

    loss: Any  # that a memory supports
    miner: Any  # chooses among the pairs; None: all
    anchors: Tensor  # (a, d), with gradient
    anchor_labels: Tensor  # (a,)
    rows: Rows  # (n, d)
    row_labels: Tensor  # (n,)
    own_rows: Tensor | None = None  # (a,), rows of the anchors' own copies, which they are not compared with
    user_pairs: IndicesTuple | None = None  # pairs or triplets of anchors and rows besides
    over_rows: OverRows = OverRows()

    def chosen(self, distances: Distances) -> Pairs:
        """Returns what the miner chooses and what is given besides, counted unless these are all pairs."""
        pairs = Pairs.all(self.anchor_labels, self.row_labels, self.own_rows, self.over_rows)
        if self.miner is not None:
            pairs = mined(self.miner, distances, pairs)
        if self.user_pairs is not None:
            pairs = pairs.and_user_pairs(self.user_pairs)
        elif self.miner is None and len(self.rows) > 4:  # certainly more than one pair
            return pairs
        return pairs.counted()


def loss_against(compared: Comparison) -> Tensor:
    """Returns the loss of the anchors against the rows, a scalar if the loss's reducer returns one."""
    recipe = recipe_of(compared.loss)
    if recipe is None:
        return _value_by_pml(compared)
    value = share_against(compared, recipe).value()
    if has_hooks(compared.loss):  # which only look: once more for them
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


def share_against(compared: Comparison, recipe: Recipe) -> Share:
    """Returns what the anchors add to a loss, by its recipe."""
    loss, form, share = compared.loss, recipe.form, Share(compared.loss, recipe, compared.anchors)
    distances = Distances(share.leaf, compared.rows)
    pairs, is_smooth = compared.chosen(distances), getattr(loss, "smooth_loss", False)
    if is_smooth and pairs.window is not None:
        pairs = pairs.listed(pairs.lists())
    share.pairs = pairs
    if form.terms is None or (is_smooth and pairs.triplets is None):
        for elements in _terms_by_pml(loss, share.leaf, distances.row_tensor, pairs):
            share.add({"loss": elements}, pairs, share.leaf, slice(None))
        return share
    share.whole = mat = distances.measured(loss.distance)
    is_checked = hasattr(loss, "_assert_either_pos_or_neg")  # since PML 2.9
    if compared.user_pairs is not None and is_checked and loss.loss_method == loss.mat_based_loss:
        loss._assert_either_pos_or_neg(*pairs[:2])
    over_rows, device = compared.over_rows, "cpu" if mat.device.type == "cpu" else "gpu"
    at_once = max(1, over_rows.pairs_at_once[device] // max(1, over_rows.most_rows or mat.shape[1]))
    needs_all = not form.is_by_anchor or getattr(loss, "learn_beta", False) or pairs.triplets is not None
    parts: Iterable[tuple[Tensor, Pairs, slice | None]] = [(mat, pairs, None)]
    if at_once < len(mat) and not needs_all:
        parts = ((mat[places], pairs.at(places), places) for places in slices(len(mat), at_once))
    for part, chosen, places in parts:
        leaf = part.detach().requires_grad_(mat.requires_grad)
        share.add(form.terms(loss, leaf, chosen), chosen, leaf, places)
    return share


class Share:
    """What some anchors add to a loss: of each of its parts a sum, what divides it, and its gradients."""

    pairs: Pairs | None = None  # that the terms are of; None: there are no terms

    def __init__(self, loss: Any, recipe: Recipe, anchors: Tensor) -> None:
        self._loss, self._recipe, self._inputs = loss, recipe, [anchors, *recipe.learned]
        is_learning = torch.is_grad_enabled() and (anchors.requires_grad or bool(recipe.learned))
        self.leaf = anchors.detach().requires_grad_(is_learning)
        self.whole = self.leaf  # or a matrix that is computed from it: what all terms are computed from
        # Of each part: sum, count, and gradients with respect to the whole and to what is learned.
        self._parts: list[list[Tensor]] = []

    def add(self, terms: Terms, pairs: Pairs, leaf: Tensor, places: slice | None = None) -> None:
        """Adds the terms of pairs, and forgets how they were computed.

        Args:
            leaf: what they were computed from.
            places: where in the whole that is; None: it is the whole, and there are no other terms.
        """
        parts: list[list[Tensor]] = []
        inputs = [leaf, *self._recipe.learned]
        for name, reducer in self._recipe.reducers.items():
            totals, count = terms[name].totals(reducer, pairs.over_rows)
            if type(reducer) is ClassWeightedReducer and totals.ndim:
                anchors = terms[name].anchors
                labels = pairs.labels if anchors is None else pairs.labels[anchors]
                totals = totals * reducer.weights.to(totals)[labels]
            elif type(reducer) is DivisorReducer:
                divisor = terms[name].divisor
                count = count if divisor is None else divisor
            total = totals.sum().to(leaf.dtype)
            part = [total.detach(), count]
            if total.requires_grad:
                part += torch.autograd.grad(
                    total,
                    inputs,
                    retain_graph=len(parts) + 1 < len(terms),
                    allow_unused=True,
                    materialize_grads=True,
                )
            elif leaf.requires_grad:
                part += [torch.zeros_like(x) for x in inputs]
            parts.append(part)
        if places is None:
            self._parts = parts
            return
        self._parts = self._parts or self._zeros()
        for (total, count, *gradients), part in zip(self._parts, parts, strict=True):
            if gradients:
                gradients[0] = gradients[0][places]
            for before, new in zip([total, count, *gradients], part, strict=True):
                before += new

    def _zeros(self) -> list[list[Tensor]]:
        inputs = [self.whole, *self._recipe.learned] if self.leaf.requires_grad else []
        like = [self.leaf.new_zeros(()), self.leaf.new_zeros((), dtype=torch.int64), *inputs]
        return [[torch.zeros_like(x) for x in like] for _ in self._recipe.reducers]

    def totals(self) -> Tensor:
        """Returns what the other ranks have to know, ``(2k + 2,)``, float64."""
        num_pairs = (0, 0) if self.pairs is None else self.pairs.counted().num_pairs
        sums, counts, *_ = zip(*(self._parts or self._zeros()), strict=True)
        return torch.stack([x.double() for x in (*sums, *counts, *self.leaf.new_tensor(num_pairs))])

    def value(self, by_rank: Tensor | None = None) -> Tensor:
        """Returns the loss, whose gradients are all that its graph keeps.

        Args:
            by_rank: the numbers of all ranks, ``(ranks, 2k + 2)``: the loss is that of all, and the mean
                over ranks of its gradients is that of a single process.
        """
        parts, num_ranks = self._parts or self._zeros(), 1
        num_pairs: Sequence[float] | None = self.pairs and self.pairs.num_pairs
        if by_rank is not None:
            num_ranks, k, totals = len(by_rank), len(parts), by_rank.sum(dim=0)
            num_pairs, totals = totals[2 * k :].tolist(), totals.to(self.leaf)
            parts = [[totals[i], totals[k + i], *part[2:]] for i, part in enumerate(parts)]
        divisors = []
        for reducer, (total, count, *_) in zip(self._recipe.reducers.values(), parts, strict=True):
            divisors.append(torch.ones_like(total) if type(reducer) is SumReducer else count.clamp_min(1))
        # Σ s / c is (s₀ + Σ s c₀ / c) / c₀, of which no matrix is divided.
        sums = [parts[0][0], *parts[0][2:]]
        for (total, _, *gradients), divisor in zip(parts[1:], divisors[1:], strict=True):
            ratio = divisors[0].to(total.dtype) / divisor
            sums = [torch.addcmul(x, y, ratio) for x, y in zip(sums, (total, *gradients), strict=True)]
        if len(sums) > 1:
            (sums[1],) = torch.autograd.grad(self.whole, self.leaf, sums[1])
        has_terms, divisor = self._has_terms(num_pairs), divisors[0]
        if has_terms is not True:
            divisor = divisor.to(sums[0].dtype) / has_terms  # by infinity, if not
        value = sums[0] / divisor
        if len(sums) > 1:
            divisor = divisor if num_ranks == 1 else divisor / num_ranks
            value = attached(value, [x / divisor for x in sums[1:]], self._inputs)
        if self._loss.embedding_regularizer:
            value = value + self._loss.embedding_regularization_loss(self._inputs[0])["losses"]
        return value

    def _has_terms(self, num_pairs: Sequence[float] | None) -> bool | Tensor:
        """Returns whether PML's loss looks at so many positive and negative pairs, and is not zero."""
        needs_both = self._recipe.form.needs_both_kinds
        if num_pairs is not None:
            has_one = isinstance(self._loss, GenericPairLoss) and max(num_pairs) <= 1
            return not (has_one or (needs_both and min(num_pairs) == 0))
        if needs_both and self.pairs is not None:  # without positive pairs there are no terms anyway
            return self.pairs.over_rows.any(self.pairs.negative).any()
        return True


def attached(value: Tensor, gradients: list[Tensor], inputs: list[Tensor]) -> Tensor:
    """Returns the value with known gradients, which are all that its graph keeps."""
    result: Tensor = _KnownGradients.apply((value, gradients), *inputs)
    return result


class _KnownGradients(torch.autograd.Function):
    """A loss whose gradients are known; they cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, known: tuple[Tensor, list[Tensor]], *_: Tensor) -> Tensor:
        value, gradients = known
        ctx.save_for_backward(*gradients)
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(loss_gradient * gradient for gradient in ctx.saved_tensors)


def _terms_by_pml(loss: Any, anchors: Tensor, rows: Tensor, pairs: Pairs) -> Iterator[Elements]:
    """Yields the terms of an ``AngularLoss``, or of a ``TripletMarginLoss`` of all triplets of the pairs.

    By PML's own code, some positive pairs at a time.
    """
    collecting = copy.copy(loss)
    collecting._modules = {**loss._modules, "reducer": DoNothingReducer()}
    a1, p = listed(pairs.positive)
    at_once = max(1, _PAIRS_AT_ONCE_BY_PML["cpu" if rows.device.type == "cpu" else "gpu"] // len(rows))
    for anchors_of_pairs, places in zip(a1.split(at_once), p.split(at_once), strict=True):
        if len(anchors_of_pairs) == 0:
            return
        first, last = anchors_of_pairs[[0, -1]].tolist()
        chosen = slice(first, last + 1)
        # AngularLoss takes all rows of other classes, whatever is listed, but something has to be listed.
        is_angular = isinstance(loss, AngularLoss)
        a2, n = (anchors_of_pairs[:1] - first, places[:1]) if is_angular else listed(pairs.negative[chosen])
        lists = anchors_of_pairs - first, places, a2, n
        info = collecting(anchors[chosen], pairs.labels[chosen], lists, rows, pairs.row_labels)["loss"]
        if torch.is_tensor(info["losses"]):
            yield Elements(info["losses"].flatten(), anchors=info["indices"][0] + first)
