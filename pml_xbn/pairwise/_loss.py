"""The loss of anchors against stored rows: by its form, a part at a time, or by PML's own code."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.losses import AngularLoss, GenericPairLoss
from pytorch_metric_learning.reducers import DivisorReducer, DoNothingReducer, SumReducer
from torch import Tensor

from .._parts import slices
from ..memory._rows import Rows
from ._distances import Distances
from ._forms import Recipe, Terms, recipe_of
from ._miners import mined
from ._pairs import IndicesTuple, Pairs
from ._reductions import Elements, OverRows
from ._triplets import Runs, listed


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
        """Returns what the miner chooses and what is given besides."""
        pairs = Pairs.all(self.anchor_labels, self.row_labels, self.own_rows, self.over_rows)
        if self.miner is not None:
            pairs = mined(self.miner, distances, pairs)
        return pairs if self.user_pairs is None else pairs.and_user_pairs(self.user_pairs)


def loss_against(compared: Comparison) -> Tensor:
    """Returns the loss of the anchors against the rows, a scalar if the loss's reducer returns one."""
    recipe = recipe_of(compared.loss)
    if recipe is not None:
        share = share_against(compared, recipe)
        return attached(*share.of_all(share.totals()), share.inputs)
    distances = Distances(compared.anchors, compared.rows)
    lists, rows = compared.chosen(distances).lists(), distances.row_tensor
    value: Tensor = compared.loss(compared.anchors, compared.anchor_labels, lists, rows, compared.row_labels)
    return value


def chosen_pairs(compared: Comparison) -> IndicesTuple:
    """Returns what the miner chooses as index tensors, pairs or triplets."""
    return compared.chosen(Distances(compared.anchors, compared.rows)).lists()


def share_against(compared: Comparison, recipe: Recipe) -> Share:
    """Returns what the anchors add to a loss, by its recipe."""
    loss, form, over_rows = compared.loss, recipe.form, compared.over_rows
    share = Share(loss, recipe, compared.anchors)
    distances = Distances(share.leaf, compared.rows)
    pairs = compared.chosen(distances)
    share.num_pairs = [over_rows.total(counts) for counts in pairs[:2]]
    if form.terms is None:
        for elements in _angular_terms(loss, share.leaf, distances.row_tensor, pairs):
            share.add({"loss": elements}, over_rows, share.leaf)
        return share
    share.whole = mat = distances.measured(loss.distance)
    is_checked = hasattr(loss, "_assert_either_pos_or_neg")  # since PML 2.9
    if compared.user_pairs is not None and is_checked and loss.loss_method == loss.mat_based_loss:
        loss._assert_either_pos_or_neg(*pairs[:2])
    can_be_cut = recipe.is_by_anchor and (pairs.triplets is None or isinstance(pairs.triplets, Runs))
    at_once = over_rows.anchors_at_once(mat.shape[1], mat.device) if can_be_cut else len(mat)
    for places in slices(len(mat), at_once):
        leaf = mat[places].detach().requires_grad_(mat.requires_grad)
        share.add(form.terms(loss, leaf, pairs.at(places)), over_rows, leaf, places)
    return share


class Share:
    """What some anchors add to a loss: of each of k parts a sum, what divides it, and its gradients.

    Attributes:
        leaf: the anchors, apart from how they were computed.
        whole: what the terms are computed from, the leaf or a matrix that follows from it.
        num_pairs: 0-d tensors, how many positive and negative pairs there are.
    """

    def __init__(self, loss: Any, recipe: Recipe, anchors: Tensor) -> None:
        self._loss, self._recipe = loss, recipe
        self.inputs = [anchors, *recipe.learned]
        is_learning = torch.is_grad_enabled() and any(x.requires_grad for x in self.inputs)
        self.leaf = self.whole = anchors.detach().requires_grad_(is_learning)
        self.num_pairs: list[Tensor] = []
        self._totals: list[list[Tensor]] = []  # k sums and k counts of what was added at once
        self._gradients: list[list[Tensor]] = []  # of each sum, with respect to the whole and what is learned

    def add(self, terms: Terms, over_rows: OverRows, leaf: Tensor, places: slice = slice(None)) -> None:
        """Adds terms, and forgets how they were computed from some places of the whole."""
        inputs = [leaf, *self._recipe.learned]
        sums, counts, gradients = [], [], []
        for name, reducer in self._recipe.reducers.items():
            values, count = terms[name].totals(reducer, over_rows)
            divisor = terms[name].divisor if type(reducer) is DivisorReducer else None
            sums.append(values.detach().sum())
            counts.append(count if divisor is None else divisor)
            if leaf.requires_grad:
                ones, is_last = torch.ones_like(values), len(sums) == len(terms)
                options = {"retain_graph": not is_last, "allow_unused": True, "materialize_grads": True}
                gradients.append(list(torch.autograd.grad(values, inputs, ones, **options)))
        self._totals.append(sums + counts)
        if not self._gradients and leaf.shape == self.whole.shape:
            self._gradients = gradients
            return
        if not self._gradients:
            inputs = [self.whole, *self._recipe.learned]
            self._gradients = [[torch.zeros_like(x) for x in inputs] for _ in gradients]
        for (of_whole, *of_learned), new in zip(self._gradients, gradients, strict=True):
            for total, gradient in zip([of_whole[places], *of_learned], new, strict=True):
                total += gradient

    def totals(self) -> list[Tensor]:
        """Returns k sums, k counts, and the numbers of pairs."""
        if not self._totals:
            return [self.leaf.new_zeros(())] * (2 * len(self._recipe.reducers) + 2)
        return [reduce(torch.add, added) for added in zip(*self._totals, strict=True)] + self.num_pairs

    def of_all(self, totals: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Returns the loss, given the totals of all shares, and its gradients; none if nothing is learned."""
        *sums_and_counts, num_positive, num_negative = totals
        k = len(sums_and_counts) // 2
        if isinstance(self._loss, GenericPairLoss):  # of a pair of each kind, or fewer, PML's are zero
            needs_both = self._recipe.form.needs_both_kinds
            number = num_positive * num_negative if needs_both else torch.maximum(num_positive, num_negative)
            has_terms = (number > 1).to(self.leaf)
        else:
            has_terms = self.leaf.new_ones(())
        factors = []
        for reducer, count in zip(self._recipe.reducers.values(), totals[k : 2 * k], strict=True):
            factors.append(has_terms if type(reducer) is SumReducer else has_terms / count.clamp_min(1))
        value = _weighed(sums_and_counts[:k], factors).to(self.leaf)
        if not self.leaf.requires_grad:
            return value, []
        if not self._gradients:
            return value, [torch.zeros_like(x) for x in self.inputs]
        of_whole, *of_learned = (_weighed(x, factors) for x in zip(*self._gradients, strict=True))
        (of_anchors,) = torch.autograd.grad(self.whole, self.leaf, of_whole)
        return value, [of_anchors, *of_learned]


def _weighed(parts: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
    """Returns the sum of the parts times their factors, in the place of the parts."""
    return reduce(torch.Tensor.add_, (part.mul_(factor) for part, factor in zip(parts, factors, strict=True)))


def attached(value: Tensor, gradients: list[Tensor], inputs: list[Tensor]) -> Tensor:
    """Returns the value with known gradients, if any, which are all that its graph keeps."""
    if not gradients:
        return value
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


def _angular_terms(loss: AngularLoss, anchors: Tensor, rows: Tensor, pairs: Pairs) -> Iterator[Elements]:
    """Yields the terms by PML's own code, some positive pairs at a time."""
    a1, p = listed(pairs.positive)
    if len(a1) == 0 or not pairs.negative.any():
        return
    collecting = copy.copy(loss)
    collecting._modules = {**loss._modules, "reducer": DoNothingReducer()}
    at_once = 8 * pairs.over_rows.anchors_at_once(len(rows), rows.device)  # for each part all rows are read
    for anchors_of_pairs, places in zip(a1.split(at_once), p.split(at_once), strict=True):
        # All rows of other classes are its negatives, whatever is listed, but something has to be listed.
        lists = anchors_of_pairs, places, a1[:1], p[:1]
        yield Elements(
            collecting(anchors, pairs.labels, lists, rows, pairs.row_labels)["loss"]["losses"].flatten()
        )
