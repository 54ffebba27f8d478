"""How PML's reducers make one number of many terms: each divides a sum by a count."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from pytorch_metric_learning import reducers
from torch import Tensor, nn

from ._over_rows import OverRows

Fraction = tuple[Tensor, Tensor]  # a sum with gradient, and the number it is to be divided by, int64


class Rule(NamedTuple):
    """What a reducer sums, and what it divides the sum by.

    Attributes:
        low, high: only terms between them are summed and counted; None: all.
        class_weights: ``(classes,)``; of every class of anchors, what its terms are multiplied with.
        divisor: ``"count"`` of the terms, ``"one"``, or ``"of loss"`` for the one that the loss has.
    """

    low: float | None = None
    high: float | None = None
    class_weights: Tensor | None = None
    divisor: str = "count"

    def within(self, values: Tensor, counts: Tensor | None) -> Tensor | None:
        """Returns how often each value counts; None: once each."""
        for bound, is_beyond in ((self.low, torch.gt), (self.high, torch.lt)):
            if bound is not None:
                mask = is_beyond(values, bound)
                counts = mask if counts is None else counts * mask
        return counts


class Terms(Protocol):
    """The terms that a loss hands its reducer, or as much of them as it takes to reduce them."""

    def fraction(self, rule: Rule, labels: Tensor, over_rows: OverRows) -> Fraction:
        """Returns the sum and its divisor, given the labels of the anchors ``(a,)``."""
        ...


class Elements(NamedTuple):
    """Terms in full.

    Attributes:
        values: ``(a,)`` of anchors, ``(a, n)`` of pairs, or ``(k,)`` of listed pairs or triplets.
        counts: how often each counts, bool or integers; None: once.
        anchors: the anchor of every listed one, ``(k,)``.
        divisor: that of PML's DivisorReducer.
    """

    values: Tensor
    counts: Tensor | None = None
    anchors: Tensor | None = None
    divisor: Tensor | None = None

    def fraction(self, rule: Rule, labels: Tensor, over_rows: OverRows) -> Fraction:
        values, counts = self.values, rule.within(self.values, self.counts)
        if counts is None:
            count = torch.tensor(values.numel(), device=values.device)
        else:
            is_mask = counts.dtype == torch.bool
            # What does not count may be NaN.
            values = values.masked_fill(~counts if is_mask else counts == 0, 0)
            if values.ndim == 2:
                values, count = over_rows.sum(values, counts), over_rows.total(counts)
            else:
                values, count = values if is_mask else values * counts, counts.sum()
        if rule.class_weights is not None:
            values = (
                values
                * rule.class_weights.to(values)[labels if self.anchors is None else labels[self.anchors]]
            )
        if rule.divisor == "of loss":
            assert self.divisor is not None, "the loss has no divisor"
            count = self.divisor
        return values.sum(), count


class Reduced(NamedTuple):
    """A part of a loss that is a number already, whatever the reducer."""

    value: Tensor

    def fraction(self, rule: Rule, labels: Tensor, over_rows: OverRows) -> Fraction:
        return self.value, torch.ones((), dtype=torch.int64, device=self.value.device)


def _rule_of_threshold(reducer: reducers.ThresholdReducer) -> Rule:
    return Rule(low=reducer.low, high=reducer.high)


_RULES = {
    reducers.AvgNonZeroReducer: _rule_of_threshold,
    reducers.ClassWeightedReducer: lambda reducer: Rule(class_weights=reducer.weights),
    reducers.DivisorReducer: lambda _: Rule(divisor="of loss"),
    reducers.MeanReducer: lambda _: Rule(),
    reducers.SumReducer: lambda _: Rule(divisor="one"),
    reducers.ThresholdReducer: _rule_of_threshold,
}


def rules_of(loss: Any) -> dict[str, Rule] | None:
    """Returns how every part of the loss is reduced; None where not as one of PML's reducers does it."""
    rules = {}
    for name in loss._sub_loss_names():
        rule = _rule_of(loss.reducer, name)
        if rule is None:
            return None
        rules[name] = rule
    return rules


def _rule_of(reducer: Any, name: str) -> Rule | None:
    if type(reducer) is reducers.MultipleReducers:
        has_own = name in reducer.reducers
        return _rule_of(reducer.reducers[name] if has_own else reducer.default_reducer, name)
    if type(reducer) is reducers.PerAnchorReducer:
        return _rule_of(reducer.reducer, name)  # to which it hands on what is one per anchor
    return _RULES[type(reducer)](reducer) if type(reducer) in _RULES else None


def check_reducers(loss: nn.Module) -> None:
    """Refuses a reducer whose result cannot be had from the sums and counts of ranks.

    Raises:
        ValueError: a reducer that is not one of PML's, or ``DoNothingReducer``.
    """
    known = (*_RULES, reducers.MultipleReducers, reducers.PerAnchorReducer)
    for module in loss.modules():
        if isinstance(module, reducers.BaseReducer) and type(module) not in known:
            names = ", ".join(sorted(cls.__name__ for cls in known))
            raise ValueError(
                f"gather_distributed=True with a {type(module).__name__}, whose result for all ranks cannot "
                f"be had from theirs: pass one of {names}"
            )
