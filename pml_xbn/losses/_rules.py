"""How PML's reducers make one number of many terms: each divides a sum by a count."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from pytorch_metric_learning import reducers
from torch import Tensor

from ._twins import has_hooks, is_as_built

Fraction = tuple[Tensor, Tensor]  # a sum with gradient, and the number it is to be divided by, int64


class Rule(NamedTuple):
    """What a reducer sums, and what it divides the sum by.

    Attributes:
        low, high: only terms between them, which count, are summed; None: all.
        class_weights: ``(classes,)``; of every class of anchors, what its terms are multiplied with.
        divisor: ``"count"`` of the terms, ``"one"``, or ``"of loss"`` for the one that the loss has.
    """

    low: float | None = None
    high: float | None = None
    class_weights: Tensor | None = None
    divisor: str = "count"

    def is_within(self, values: Tensor) -> Tensor | None:
        """Which of the values count; None: all."""
        within = None if self.low is None else values > self.low
        if self.high is not None:
            within = values < self.high if within is None else within & (values < self.high)
        return within

    def weights_of(self, labels: Tensor, values: Tensor) -> Tensor | None:
        """Of anchors with these labels, ``(a,)``; None: 1."""
        return None if self.class_weights is None else self.class_weights.to(values)[labels]


class Terms(Protocol):
    """The terms that a loss hands its reducer, or as much of them as it takes to reduce them."""

    def fraction(self, rule: Rule, labels: Tensor) -> Fraction:
        """The sum and its divisor.

        Args:
            labels: of the anchors, ``(a,)``.
        """
        ...


class Elements(NamedTuple):
    """Terms in full.

    Attributes:
        values: ``(a,)`` of anchors, ``(a, n)`` of pairs, or ``(k,)`` of whatever.
        weights: how often each counts, bool or integers; None: once.
        anchors: of every value its anchor, where there is not one a row.
        divisor: that of PML's DivisorReducer.
    """

    values: Tensor
    weights: Tensor | None = None
    anchors: Tensor | None = None
    divisor: Tensor | None = None

    def fraction(self, rule: Rule, labels: Tensor) -> Fraction:
        values, counted = self.values, self.weights
        is_mask = counted is None or counted.dtype == torch.bool
        within = rule.is_within(values.detach())
        if within is not None and counted is not None:
            within = within & counted if is_mask else within * counted
        counted = counted if within is None else within
        of_class = rule.weights_of(labels if self.anchors is None else labels[self.anchors], values)
        if of_class is not None:
            values = values * of_class.view(-1, *[1] * (values.ndim - 1))
        if counted is None:
            total, count = values.sum(), torch.tensor(values.numel(), device=values.device)
        else:
            values = torch.where(counted.bool(), values, 0)
            total = (values if is_mask else values * counted).sum()
            count = counted.count_nonzero() if is_mask else counted.sum()  # a CPU sums bool slowly
        if rule.divisor == "of loss":
            assert self.divisor is not None, "the loss has no divisor"
            count = self.divisor
        return total, count


def _of_threshold(reducer: reducers.ThresholdReducer) -> Rule:
    return Rule(low=reducer.low, high=reducer.high)


_RULES = {
    reducers.AvgNonZeroReducer: _of_threshold,
    reducers.ClassWeightedReducer: lambda reducer: Rule(class_weights=reducer.weights),
    reducers.DivisorReducer: lambda _: Rule(divisor="of loss"),
    reducers.MeanReducer: lambda _: Rule(),
    reducers.SumReducer: lambda _: Rule(divisor="one"),
    reducers.ThresholdReducer: _of_threshold,
}
KNOWN_REDUCERS = (*_RULES, reducers.MultipleReducers, reducers.PerAnchorReducer)


def rules_of(loss: Any) -> dict[str, Rule] | None:
    """How every part of the loss is reduced; None where not as one of PML's reducers does it."""
    rules = {name: _rule_of(loss.reducer, name) for name in loss._sub_loss_names()}
    known = {name: rule for name, rule in rules.items() if rule is not None}
    return known if len(known) == len(rules) else None


def _rule_of(reducer: Any, name: str) -> Rule | None:
    if type(reducer) not in KNOWN_REDUCERS or not is_as_built(reducer) or reducer.collect_stats:
        return None
    if has_hooks(reducer):
        return None
    if isinstance(reducer, reducers.MultipleReducers):
        has_own = name in reducer.reducers
        return _rule_of(reducer.reducers[name] if has_own else reducer.default_reducer, name)
    if isinstance(reducer, reducers.PerAnchorReducer):
        return _rule_of(reducer.reducer, name)  # to which it hands on what is one per anchor
    return _RULES[type(reducer)](reducer)
