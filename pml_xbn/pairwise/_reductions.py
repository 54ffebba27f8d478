"""Row-wise reductions; a loss or miner combines an anchor's pairs only through these.

A fused loss or miner asks ``over_rows`` for them, and gets one number per anchor for each:

    num_positive, log_sum = over_rows(Count(positive), LogSumExp(mat, positive))

``AllRows`` computes them from all rows. Where rows are spread over ranks, reductions are computed from parts
of rows, and the results are merged. Each reduction computes its own derivative, so that autograd sees one
number per anchor, and no pairs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._arithmetic import widest
from .._tracing import computed_once, is_in_compiled_step

# The log-sum-exp of no values; it is also added to values that do not count, before the largest is found.
LOG_SUM_OF_NONE = -1e30
# Divided by a smaller scale it would be infinite in float32.
_LEAST_SCALE = 1e-6
# So many numbers a CPU sums in float32, in a tenth of the time of float64.
_SUMMED_AT_ONCE = 2048


class AllPairs(NamedTuple):
    """All pairs of anchors and occupied rows but self-pairs, which count once each."""

    self_pairs: Tensor | None  # (a,), the indices of the anchors' own copies
    is_row: Tensor | None  # (n,), which rows are occupied; None: all


def are_self_pairs(self_pairs: Tensor, mat: Tensor) -> Tensor:
    """Returns which pairs of a matrix ``(a, n)`` are those of an anchor and its own copy."""
    return torch.arange(mat.shape[1], device=mat.device) == self_pairs.unsqueeze(1)


class Reduction(ABC):
    """A reduction of ``(a, n)`` to ``(a,)``, over those pairs that count.

    Args:
        values: ``(a, n)``; the loss's matrix, or what follows from it by differentiable functions.
        counts: how often each pair counts, ``(a, n)``: bool, integers, or these in a floating dtype.
    """

    has_gradient = True

    def __init__(self, values: Tensor, counts: Tensor) -> None:
        self.values, self.counts = values, counts

    @abstractmethod
    def result(self) -> Tensor:
        """Returns what these rows give, ``(a,)``, without a graph."""

    def part(self) -> Tensor:
        """Returns what these rows add to the result of many."""
        return self.result()

    @staticmethod
    @abstractmethod
    def merged(one: Tensor, other: Tensor) -> Tensor:
        """Returns what two parts of the rows, in order, add together."""

    def gradient(self, weights: Tensor, whole: Tensor | None, total: Tensor | None) -> Tensor:
        """Returns the gradient at the values ``(a, n)``, given that at the result of all rows ``(a,)``.

        It may be asked for once.

        Args:
            weights: the gradient at the result.
            whole: the result of all rows; None where these rows are all.
            total: a gradient to add this one to, in place.
        """
        raise NotImplementedError

    def as_result(self, whole: Tensor) -> Tensor:
        """Returns what parts were merged to in the dtype of a result."""
        return whole.to(self.values.dtype)

    def reuse_(self, other: Reduction) -> None:  # noqa: B027
        """Takes over what another reduction of the same values has computed."""


OverRows = Callable[..., Sequence[Tensor]]


class Sum(Reduction):
    """The sum of the values, each as often as it counts; its gradient may overwrite floating counts."""

    _numbers: Tensor | None = None  # how often each pair counts, in the dtype of the values

    def result(self) -> Tensor:
        self._numbers = as_numbers(self.counts, self.values.dtype)
        return (self.values * self._numbers).sum(dim=1)

    @staticmethod
    def merged(one: Tensor, other: Tensor) -> Tensor:
        return one + other

    def gradient(self, weights: Tensor, whole: Tensor | None, total: Tensor | None) -> Tensor:
        numbers, weights = self._numbers, computed_once(weights).unsqueeze(1)
        if numbers is None:
            numbers = as_numbers(self.counts, self.values.dtype)
        return numbers.mul_(weights) if total is None else total.addcmul_(numbers, weights)


class Count(Reduction):
    """How many pairs count."""

    has_gradient = False

    def __init__(self, counts: Tensor) -> None:
        super().__init__(counts, counts)

    def result(self) -> Tensor:
        if self.counts.dtype == torch.bool:  # whose sum would make int64 of all of it
            return self.counts.view(torch.uint8).sum(dim=1, dtype=torch.int32)
        return self.counts.sum(dim=1)

    @staticmethod
    def merged(one: Tensor, other: Tensor) -> Tensor:
        return one + other

    def as_result(self, whole: Tensor) -> Tensor:
        return whole if self.counts.is_floating_point() else whole.long()


class Max(Reduction):
    """The largest of the values that count, without gradient; -inf where none does."""

    has_gradient = False

    def result(self) -> Tensor:
        if self.values.shape[1] == 0:
            return self.values.new_full((len(self.values),), -torch.inf)
        return torch.where(self.counts, self.values, -torch.inf).amax(dim=1)

    @staticmethod
    def merged(one: Tensor, other: Tensor) -> Tensor:
        return torch.maximum(one, other)


class Largest(Reduction):
    """The index of the row with the largest of the values that count, the first of equal ones; -1: none.

    Its part is ``(2, a)``: the largest value, -inf where none counts, and the index of its row.
    """

    has_gradient = False

    def __init__(self, values: Tensor, counts: Tensor, first_row: int = 0) -> None:
        super().__init__(values, counts)
        self.first_row = first_row  # the index of the first of these rows

    def result(self) -> Tensor:
        rows = torch.where(self.counts, self.values, -torch.inf).argmax(dim=1, keepdim=True)
        return torch.where(self.counts.gather(1, rows), rows, -1).squeeze(1)

    def part(self) -> Tensor:
        if self.values.shape[1] == 0:
            return widest(self.values.new_full((2, len(self.values)), -torch.inf))
        rows = self.result()
        values = self.values.gather(1, rows.clamp_min(0).unsqueeze(1)).squeeze(1)
        return torch.stack([widest(values.masked_fill(rows < 0, -torch.inf)), widest(rows + self.first_row)])

    @staticmethod
    def merged(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(other[0] > one[0], other, one)

    def as_result(self, whole: Tensor) -> Tensor:
        return whole.long()


class LogSumExp(Reduction):
    """log Σ exp(scale · values); where none counts, a number for which ``is_of_none`` is true.

    Args:
        values: as of every reduction.
        counts: as of every reduction.
        scale: a number, or a 0-d tensor, which may be learned.
        is_wide: whether the result is in float64 and keeps what small values add to a large one. A loss needs
            that which subtracts from it what it nearly equals.
    """

    may_overwrite = False  # the values, as nobody reads them after it
    _exponentials: Tensor | None = None  # (a, n), divided by the largest of the anchor
    _total: Tensor  # (a,), of these
    _own: Tensor  # (a,), the result

    def __init__(
        self,
        values: Tensor,
        counts: Tensor | AllPairs,
        scale: Tensor | float = 1.0,
        *,
        is_wide: bool = False,
    ) -> None:
        self.is_wide = is_wide
        # The scale is applied to differences with the largest value, in place.
        self.scale = 1.0
        if isinstance(scale, Tensor) or abs(scale) < _LEAST_SCALE:
            values = values * scale
        else:
            self.scale = float(scale)
        self.values, self._counts = values, counts

    def result(self) -> Tensor:
        values, scale = self.values, self.scale
        if values.shape[1] == 0:
            ones = values.new_ones(len(values))
            self._exponentials, self._total = values.clone(), widest(ones) if self.is_wide else ones
            self._own = torch.full_like(self._total, LOG_SUM_OF_NONE)
            return self._own
        # Far away also once it is scaled.
        numbers = self._without_others(LOG_SUM_OF_NONE / math.copysign(min(1.0, abs(scale)), scale))
        largest = (numbers.amax if scale > 0 else numbers.amin)(dim=1, keepdim=True)
        numbers.sub_(largest)
        if scale != 1:
            numbers.mul_(scale)
        # Numbers that are nearly zero would take a CPU ten to thirty times as long. Those of rows that do not
        # count, up to millions of them, are less beside the largest, 1, than float64 can tell.
        exponentials = numbers.clamp_(min=math.log(torch.finfo(values.dtype).tiny) * 0.6).exp_()
        counts = None if isinstance(self._counts, AllPairs) else self._counts
        counts_once = counts is None or counts.dtype == torch.bool
        if counts is not None and not counts_once:
            exponentials.mul_(counts)
        self._exponentials = exponentials
        self._total = _sum_in_float64(exponentials) if self.is_wide else exponentials.sum(dim=1)
        if not counts_once:
            self._total.clamp_min_(torch.finfo(values.dtype).tiny)
        self._own = torch.add(self._total.log(), largest.squeeze(1), alpha=scale)
        return self._own

    def as_result(self, whole: Tensor) -> Tensor:
        return widest(whole) if self.is_wide else super().as_result(whole)

    def reuse_(self, other: Reduction) -> None:
        if isinstance(other, LogSumExp) and other._exponentials is not None:
            self._exponentials, self._total, self._own = other._exponentials, other._total, other._own

    def _without_others(self, far_away: float) -> Tensor:
        """Returns the values, of which those that do not count are far away, or a copy of them."""
        values, counts, overwrites = self.values, self._counts, self.may_overwrite
        if isinstance(counts, AllPairs):
            if counts.is_row is not None:
                values = torch.add(values, as_numbers(~counts.is_row, values.dtype), alpha=far_away)
                overwrites = True
            if counts.self_pairs is None:
                return values if overwrites else values.clone()
            if is_in_compiled_step():  # which fuses a comparison, and not a scatter
                return torch.where(are_self_pairs(counts.self_pairs, values), far_away, values)
            scatter = values.scatter_ if overwrites else values.scatter
            return scatter(1, counts.self_pairs.unsqueeze(1), far_away)
        # Adding numbers takes a CPU a fifth of the time of a choice by a mask.
        others = as_numbers(~counts if counts.dtype == torch.bool else counts == 0, values.dtype)
        return torch.add(values, others, alpha=far_away)

    @staticmethod
    def merged(one: Tensor, other: Tensor) -> Tensor:
        return torch.logaddexp(one, other)

    def gradient(self, weights: Tensor, whole: Tensor | None, total: Tensor | None) -> Tensor:
        if whole is not None:
            if self._exponentials is None:
                with torch.no_grad():
                    self.result()
            weights = weights * (self._own - whole).exp()
        assert self._exponentials is not None
        exponentials, self._exponentials = self._exponentials, None
        weights = computed_once((weights / self._total).to(exponentials.dtype)).unsqueeze(1)
        if total is not None:
            return total.addcmul_(exponentials, weights, value=self.scale)
        return exponentials.mul_(weights if self.scale == 1 else weights * self.scale)


def _sum_in_float64(exponentials: Tensor) -> Tensor:
    """Returns the sums of every anchor's numbers, in which a small one is not lost next to the largest."""
    num_rows = exponentials.shape[1]
    if exponentials.device.type != "cpu" or is_in_compiled_step() or num_rows <= _SUMMED_AT_ONCE:
        return exponentials.sum(dim=1, dtype=widest(exponentials[:0]).dtype)
    parts = exponentials.split(_SUMMED_AT_ONCE, dim=1)
    sums = widest(torch.stack([part.sum(dim=1) for part in parts], dim=1))
    # Of all parts but that with the largest number, which is 1, what float32 loses is small.
    largest = sums.argmax(dim=1, keepdim=True)
    rows = largest * _SUMMED_AT_ONCE + torch.arange(_SUMMED_AT_ONCE, device="cpu")
    numbers = widest(exponentials.gather(1, rows.clamp(max=num_rows - 1))).mul_(rows < num_rows)
    return sums.scatter_(1, largest, numbers.sum(dim=1, keepdim=True)).sum(dim=1)


def is_of_none(log_sums: Tensor) -> Tensor:
    """Returns which results of ``LogSumExp`` are those of no values."""
    return log_sums < LOG_SUM_OF_NONE / 10


def as_numbers(counts: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns how often each pair counts in a floating dtype."""
    # A mask itself takes a CPU six times as long as its bytes, and compiled bytes as long as an eager mask.
    has_bytes = counts.dtype == torch.bool and not is_in_compiled_step()
    return (counts.view(torch.uint8) if has_bytes else counts).to(dtype)


def sum_over_rows(values: Tensor, counts: Tensor) -> Tensor:
    """Returns the sum of the values of every anchor, each as often as it counts, ``(a,)``, with its graph."""
    return (values * as_numbers(counts, values.dtype)).sum(dim=1)


def total(counts: Tensor) -> Tensor:
    """Returns how many pairs of all anchors count, a 0-d integer tensor."""
    if counts.dtype != torch.bool:
        return counts.sum()
    if is_in_compiled_step():  # which has these sums from a loss that counts too; exact for 2²⁴ rows
        return as_numbers(counts, torch.float32).sum(dim=1).long().sum()
    return counts.count_nonzero()  # a sum on a CPU would make int64 of all of the mask


class AllRows:
    """Reductions over rows that are all here: each has its result.

    Args:
        has_gradient: whether the results are leaves of a graph.
        overwrites: a matrix that the last reduction may overwrite, if all that have a gradient are of it.
    """

    def __init__(self, *, has_gradient: bool = False, overwrites: Tensor | None = None) -> None:
        self._has_gradient, self._overwrites = has_gradient, overwrites
        # Those that have a gradient, and their results, at which it is taken.
        self.reductions: list[Reduction] = []
        self.results: list[Tensor] = []

    def __call__(self, *reductions: Reduction) -> Sequence[Tensor]:
        if self.reductions:
            raise RuntimeError("a fused loss asks for all reductions that have a gradient in one call")
        last, mat = reductions[-1], self._overwrites
        if mat is not None and isinstance(last, LogSumExp) and not is_in_compiled_step():
            last.may_overwrite = all(x.values is mat for x in reductions if x.has_gradient)
        with torch.no_grad():
            results = [reduction.result() for reduction in reductions]
        with_gradient = [(x, y) for x, y in zip(reductions, results, strict=True) if x.has_gradient]
        self.reductions, self.results = [x for x, _ in with_gradient], [y for _, y in with_gradient]
        if self._has_gradient:
            for result in self.results:
                result.requires_grad_()
        return results


def gradients_of_values(
    reductions: Sequence[Reduction],
    weights: Sequence[Tensor | None],
    wholes: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
) -> list[Tensor | None]:
    """Returns the gradients at a matrix and at what is learned, given those at the results of reductions.

    Args:
        reductions: that have a gradient.
        weights: the gradients at their results, ``(a,)``; None: zero.
        wholes: their results over all rows; None where they are of all rows.
        inputs: the matrix, of which the values of the reductions are functions, and what is learned.
    """
    gradients: list[Tensor | None] = [None] * len(inputs)
    for reduction, weight, whole in zip(reductions, weights, wholes, strict=True):
        if weight is None:
            continue
        if reduction.values is inputs[0]:
            gradients[0] = reduction.gradient(weight, whole, gradients[0])
        elif reduction.values.requires_grad:
            at_values = reduction.gradient(weight, whole, None)
            options = {"retain_graph": True, "allow_unused": True}
            found = torch.autograd.grad(reduction.values, inputs, at_values, **options)
            gradients = added(found, gradients)
    return gradients


def added(ones: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Returns sums of gradients, of which None stands for zero."""
    both = zip(ones, others, strict=True)
    return [x if y is None else y if x is None else x + y for x, y in both]
