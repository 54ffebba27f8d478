"""The loss of anchors against stored rows: by its form, a part at a time, or by PML's own code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.losses import AngularLoss, GenericPairLoss
from pytorch_metric_learning.reducers import DivisorReducer, SumReducer
from torch import Tensor

from .._arithmetic import slices
from ..memory._rows import Rows
from ._distances import Distances
from ._forms import Terms
from ._miners import mined, mined_by_its_own_code
from ._pairs import Elements, IndicesTuple, Pairs, Runs, anchors_at_once, leave_out, listed
from ._recipes import Recipe, is_function_of_pairs, recipe_of
from ._reductions import of_all_rows, total


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

    def all_pairs(self, first: int | None = None) -> Pairs:
        """Returns all pairs but own copies.

        Args:
            first: the number of the first row, if the rows are a part of those that are numbered.
        """
        positive = self.anchor_labels.unsqueeze(1) == self.row_labels
        negative = ~positive
        if self.own_rows is not None:
            positive = leave_out(positive, self.own_rows, first)
        return Pairs(positive, negative, self.anchor_labels, self.row_labels, self.own_rows, first or 0)

    def chosen(self, distances: Distances) -> Pairs:
        """Returns what the miner chooses, without one all but own copies, and what is given besides."""
        pairs = self.all_pairs()
        if self.miner is not None:
            mine = mined if is_function_of_pairs(self.miner) else mined_by_its_own_code
            pairs = mine(self.miner, distances, pairs)
        return pairs if self.user_pairs is None else pairs.and_user_pairs(self.user_pairs)


def loss_against(compared: Comparison) -> Tensor:
    """Returns the loss of the anchors against the rows, a scalar if the loss's reducer returns one."""
    recipe = recipe_of(compared.loss)
    if recipe is None:
        return _loss_by_pml(compared)
    share = share_against(compared, recipe)
    if compared.loss._forward_hooks:  # which only look
        device = compared.anchors.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            _loss_by_pml(compared)
    return KnownGradients.apply(share.value(), *share.inputs)  # type: ignore[no-any-return]


def _loss_by_pml(compared: Comparison) -> Tensor:
    """Returns the loss by its own code, which gets index tensors and a tensor of rows."""
    lists = compared.chosen(Distances(compared.anchors, compared.rows)).lists()
    rows = compared.rows.read(compared.anchors.dtype)
    value: Tensor = compared.loss(compared.anchors, compared.anchor_labels, lists, rows, compared.row_labels)
    return value


def share_against(compared: Comparison, recipe: Recipe) -> Share:
    """Returns what the anchors add to a loss, by its recipe."""
    loss, form = compared.loss, recipe.form
    share = Share(loss, recipe, compared.anchors)
    distances = Distances(share.leaf, compared.rows)
    pairs = compared.chosen(distances)
    share.num_pairs = pairs.num_pairs or [total(counts) for counts in pairs[:2]]
    if form.terms is None:
        share.begin()
        for elements in _angular_terms(loss, share.leaf, compared.rows, pairs):
            share.add({"loss": elements}, share.leaf)
        return share
    mat = distances.measured(loss.distance)
    is_checked = hasattr(loss, "_assert_either_pos_or_neg")  # since PML 2.9
    is_listed = pairs.num_pairs is None and pairs.positive.dtype != torch.bool
    if is_listed and is_checked and loss.loss_method == loss.mat_based_loss:
        loss._assert_either_pos_or_neg(*pairs[:2])
    can_be_cut = recipe.is_by_anchor and (pairs.triplets is None or isinstance(pairs.triplets, Runs))
    num_listed = mat.shape[1]
    if getattr(loss, "smooth_loss", False):  # lists triplets
        num_listed *= int(pairs.masks()[0].sum(dim=1).max())
    at_once = anchors_at_once(num_listed, mat.device) if can_be_cut else len(mat)
    if at_once >= len(mat) and len(recipe.reducers) == 1:
        share.add(of_all_rows(form.terms(loss, mat, pairs)), share.leaf)
        return share
    share.whole = mat  # to which the gradients of many parts are added, before one goes on
    for places in slices(len(mat), at_once):
        part, chosen = (mat, pairs) if at_once >= len(mat) else (mat[places], pairs.at(places))
        leaf = part.detach().requires_grad_(mat.requires_grad)
        share.add(of_all_rows(form.terms(loss, leaf, chosen)), leaf, places)
    return share


class Share:
    """What some anchors add to a loss of k parts."""

    def __init__(self, loss: Any, recipe: Recipe, anchors: Tensor) -> None:
        self._loss, self._recipe = loss, recipe
        self.inputs = [anchors, *recipe.learned]
        is_learning = torch.is_grad_enabled() and (anchors.requires_grad or bool(recipe.learned))
        # The anchors, apart from how they were computed, and what the terms follow from: they, or a matrix.
        self.leaf = self.whole = anchors.detach().requires_grad_(is_learning)
        # Of each part the sum of its terms, its divisor, and its gradients at the whole and what is learned.
        self.parts: list[list[Tensor]] = []
        self.num_pairs: Sequence[Tensor | int] = [0, 0]  # positive and negative ones

    def add(self, terms: Terms, leaf: Tensor, places: slice = slice(None)) -> None:
        """Adds terms, and forgets how they were computed from some places of the whole."""
        parts: list[list[Tensor]] = []
        inputs = [leaf, *self._recipe.learned]
        for name, reducer in self._recipe.reducers.items():
            values, count = terms[name].totals(reducer)
            divisor = terms[name].divisor if type(reducer) is DivisorReducer else None
            parts.append([values.detach().sum(), count if divisor is None else divisor])
            if leaf.requires_grad:
                ones, is_last = torch.ones_like(values), len(parts) == len(terms)
                options = {"retain_graph": not is_last, "allow_unused": True}
                # Terms of a parameter alone have no gradient if it is frozen.
                found: Sequence[Tensor | None] = [None] * len(inputs)
                if values.requires_grad:
                    found = torch.autograd.grad(values, inputs, ones, **options)
                # materialize_grads=True makes leaves of None in torch 2.1, which cannot be written to.
                for x, y in zip(found, inputs, strict=True):
                    parts[-1].append((torch.zeros_like(y) if x is None else x).to(leaf.device))
        if not self.parts and leaf.shape == self.whole.shape:
            self.parts = parts
            return
        self.begin()
        for before, new in zip(self.parts, parts, strict=True):
            at_places = before[:2] + [x[places] for x in before[2:3]] + before[3:]
            for x, added in zip(at_places, new, strict=True):
                x += added

    def begin(self) -> None:
        """Begins with zeros, if nothing has been added yet."""
        if not self.parts:
            inputs = [self.whole, *self._recipe.learned] if self.leaf.requires_grad else []
            like = [self.leaf.new_zeros(()), self.leaf.new_zeros((), dtype=torch.int64), *inputs]
            device = self.leaf.device  # what is learned may be on another
            self.parts = [[torch.zeros_like(x, device=device) for x in like] for _ in self._recipe.reducers]

    @property
    def totals(self) -> Tensor:
        """k sums, k counts, and the 2 numbers of pairs, float64; may be set to those of all ranks."""
        self.begin()
        sums, counts, *_ = zip(*self.parts, strict=True)
        numbers = (torch.as_tensor(x, device=self.leaf.device) for x in (*sums, *counts, *self.num_pairs))
        return torch.stack([number.double() for number in numbers])

    @totals.setter
    def totals(self, totals: Tensor) -> None:
        k, numbers = len(self.parts), totals.to(self.leaf.device).unbind()
        for number, part in enumerate(self.parts):
            part[:2] = numbers[number], numbers[k + number]
        self.num_pairs = list(numbers[2 * k :])

    def value(self) -> tuple[Tensor, list[Tensor]]:
        """Returns the loss, and its gradients with respect to the inputs, if any."""
        counts = [part[1] for part in self.parts]
        factors = reducing_factors(self._loss, self._recipe, counts, self.num_pairs, self.leaf)
        for factor, (values, _, *gradients) in zip(factors, self.parts, strict=True):
            for x in (values, *gradients):
                x *= factor
        (value, _, *gradients), *others = self.parts
        for other, _, *other_gradients in others:
            for x, y in zip([value, *gradients], [other, *other_gradients], strict=True):
                x += y
        if gradients and self.whole is not self.leaf:
            gradients[:1] = torch.autograd.grad(self.whole, self.leaf, gradients[0])
        return value.to(self.leaf), gradients


def reducing_factors(
    loss: Any, recipe: Recipe, counts: Sequence[Tensor], num_pairs: Sequence[Tensor | int], like: Tensor
) -> list[Tensor]:
    """Returns by what the reducers multiply the sums of the terms, for each part of the loss.

    Args:
        loss: that a memory supports.
        recipe: the loss's.
        counts: for each part the number of terms, or what its reducer divides by instead.
        num_pairs: how many pairs are positive, and how many are negative.
        like: a tensor of the loss's dtype and device.
    """
    enough: Tensor | bool = True
    if isinstance(loss, GenericPairLoss):  # of a pair of each kind, or fewer, PML's are zero
        positive, negative = num_pairs
        needs_both = recipe.form.needs_both_kinds
        enough = positive * negative > 1 if needs_both else (positive > 1) | (negative > 1)
    has_terms = enough.to(like) if isinstance(enough, Tensor) else like.new_full((), enough)
    factors = []
    for reducer, count in zip(recipe.reducers.values(), counts, strict=True):
        factor = has_terms if type(reducer) is SumReducer else has_terms / count.clamp_min(1)
        if type(reducer) is DivisorReducer:  # of a divisor of 0 PML's result is 0, whatever the sum
            factor = factor * (count > 0)
        factors.append(factor)
    return factors


class KnownGradients(torch.autograd.Function):
    """A loss of known gradients, which are all that its graph keeps; they cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, known: tuple[Tensor, list[Tensor]], *inputs: Tensor) -> Tensor:
        value, gradients = known
        ctx.save_for_backward(*gradients)
        with torch.enable_grad():
            ctx.sums = list(map(torch.sum, inputs))  # which lead to the inputs and do not keep them
        return value

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor | None, ...]:
        both = zip(ctx.saved_tensors, ctx.sums, strict=True)
        gradients = [(loss_gradient * gradient).to(x.device) for gradient, x in both]
        if torch.is_grad_enabled():  # create_graph=True; without a graph a penalty would count as constant
            gradients = [x + _Unknown.apply(y) for x, y in zip(gradients, ctx.sums, strict=True)]
        return None, *gradients


class _Unknown(torch.autograd.Function):
    """Zero, which raises when it is differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> None:
        raise RuntimeError(
            "the loss of a memory has no second derivative: compute it with PML's code on embedding_memory"
        )


def _angular_terms(loss: AngularLoss, anchors: Tensor, stored: Rows, pairs: Pairs) -> Iterator[Elements]:
    """Yields the terms by PML's own code, some positive pairs at a time."""
    a1, p = listed(pairs.positive > 0)  # once each, as triplets hold a pair with every negative
    if len(a1) == 0 or not pairs.negative.any():
        return
    rows = stored.read(anchors.dtype)
    at_once = 8 * anchors_at_once(len(rows), rows.device)  # for each part all rows are read
    for anchors_of_pairs, places in zip(a1.split(at_once), p.split(at_once), strict=True):
        # All rows of other classes are its negatives, whatever is listed, but something has to be listed.
        lists = anchors_of_pairs, places, a1[:1], p[:1]
        found = loss.compute_loss(anchors, pairs.labels, lists, rows, pairs.row_labels)  # no hook sees it
        yield Elements(found["loss"]["losses"].flatten(), pairs.positive[anchors_of_pairs, places])
