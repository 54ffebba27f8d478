"""The sums of a loss's terms, and what reducers make of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pytorch_metric_learning.losses import GenericPairLoss
from pytorch_metric_learning.reducers import DivisorReducer, SumReducer
from torch import Tensor

from ._forms import Terms
from ._recipes import Recipe


class LossSums:
    """The sums, counts and gradients of some anchors' terms, of which a loss of k parts consists."""

    def __init__(self, loss: Any, recipe: Recipe, anchors: Tensor) -> None:
        self._loss, self._recipe = loss, recipe
        self.inputs = [anchors, *recipe.learned]
        is_learning = torch.is_grad_enabled() and (anchors.requires_grad or bool(recipe.learned))
        # `leaf` is the anchors without the graph that made them; `whole` is what the terms are computed from,
        # the anchors or a matrix.
        self.leaf = self.whole = anchors.detach().requires_grad_(is_learning)
        # Of each part the sum of its terms, its divisor, and its gradients at the whole and what is learned.
        self.parts: list[list[Tensor]] = []
        self.num_pairs: Sequence[Tensor | int] = [0, 0]  # positive and negative ones
        self.zero: Tensor | float = 0.0  # NaN if what is compared is not finite

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
        """k sums, k counts, the 2 numbers of pairs, and zero or NaN, all float64.

        They may be set to those of all ranks.
        """
        self.begin()
        sums, counts, *_ = zip(*self.parts, strict=True)
        numbers = (*sums, *counts, *self.num_pairs, self.zero)
        return torch.stack([torch.as_tensor(x, device=self.leaf.device).double() for x in numbers])

    @totals.setter
    def totals(self, totals: Tensor) -> None:
        k, numbers = len(self.parts), totals.to(self.leaf.device).unbind()
        for number, part in enumerate(self.parts):
            part[:2] = numbers[number], numbers[k + number]
        self.num_pairs, self.zero = list(numbers[2 * k : -1]), numbers[-1]

    def value(self) -> tuple[Tensor, list[Tensor]]:
        """Returns the loss, and its gradients with respect to the inputs, if any."""
        counts = [part[1] for part in self.parts]
        factors = reducing_factors(self._loss, self._recipe, counts, self.num_pairs, self.zero, self.leaf)
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
    loss: Any,
    recipe: Recipe,
    counts: Sequence[Tensor],
    num_pairs: Sequence[Tensor | int],
    zero: Tensor | float,
    like: Tensor,
) -> list[Tensor]:
    """Returns by what the reducers multiply the sums of the terms, for each part of the loss.

    Args:
        loss: that a memory supports.
        recipe: the loss's.
        counts: for each part the number of terms, or what its reducer divides by instead.
        num_pairs: how many pairs are positive, and how many are negative.
        zero: 0, or NaN to make the loss and all its gradients NaN.
        like: a tensor of the loss's dtype and device.
    """
    enough: Tensor | bool = True
    if isinstance(loss, GenericPairLoss):  # of a pair of each kind, or fewer, PML's are zero
        positive, negative = num_pairs
        needs_both = recipe.form.needs_both_kinds
        enough = positive * negative > 1 if needs_both else (positive > 1) | (negative > 1)
    has_terms = enough.to(like) if isinstance(enough, Tensor) else like.new_full((), enough)
    has_terms = has_terms + zero
    factors = []
    for reducer, count in zip(recipe.reducers.values(), counts, strict=True):
        factor = has_terms if type(reducer) is SumReducer else has_terms / count.clamp_min(1)
        if type(reducer) is DivisorReducer:  # of a divisor of 0 PML's result is 0, whatever the sum
            factor = factor * (count > 0)
        factors.append(factor)
    return factors
