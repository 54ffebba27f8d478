"""Reductions of pairs to one number an anchor, through which alone a loss or miner sees more than one pair.

A loss or miner that needs some is a generator: it yields them together and goes on with their results. So its
caller may compute them from all rows, or from parts of the rows, on one process or many, and merge these.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._arithmetic import widest

Result = TypeVar("Result")


class Reduction(ABC):
    """A reduction of ``(a, n)`` to ``(a,)``, over those pairs that count."""

    has_gradient = True

    def __init__(self, values: Tensor, counts: Tensor) -> None:
        self.values = values  # (a, n)
        self.counts = counts  # how often each pair counts, (a, n), bool or, for sums and counts, integers

    @abstractmethod
    def result(self) -> Tensor:
        """Returns what these rows give, ``(a,)``."""

    def part(self) -> Tensor:
        """Returns what these rows add to the result of many, with gradient if it has one."""
        return self.result()

    @staticmethod
    @abstractmethod
    def merged(one: Tensor, other: Tensor) -> Tensor:
        """Returns what two parts of the rows, in order, add together."""

    @staticmethod
    def derivative(part: Tensor, whole: Tensor) -> Tensor:
        """Returns by how much the result of all rows changes with that of a part."""
        return torch.ones_like(part)

    def as_result(self, whole: Tensor) -> Tensor:
        """Returns what parts were merged to in the dtype of a result."""
        return whole.to(self.values.dtype)


Reductions = Sequence[Reduction]
# A function that needs reductions: it yields them, is sent their results, and returns its own.
Reducing = Generator[Reductions, Sequence[Tensor], Result]


class Sum(Reduction):
    """The sum of the values, each as often as it counts."""

    def result(self) -> Tensor:
        return sum_over_rows(self.values, self.counts)

    @staticmethod
    def merged(one: Tensor, other: Tensor) -> Tensor:
        return one + other


class Count(Reduction):
    """How many pairs count, int64."""

    has_gradient = False

    def __init__(self, counts: Tensor) -> None:
        super().__init__(counts, counts)

    def result(self) -> Tensor:
        return self.counts.sum(dim=1)

    @staticmethod
    def merged(one: Tensor, other: Tensor) -> Tensor:
        return one + other

    def as_result(self, whole: Tensor) -> Tensor:
        return whole.long()


class Max(Reduction):
    """The largest of the values that count, without gradient; -inf where none does."""

    has_gradient = False

    def result(self) -> Tensor:
        values = self.values.detach()
        if values.shape[1] == 0:
            return values.new_full((len(values),), -torch.inf)
        return torch.where(self.counts, values, -torch.inf).amax(dim=1)

    @staticmethod
    def merged(one: Tensor, other: Tensor) -> Tensor:
        return torch.maximum(one, other)


class Largest(Reduction):
    """The number of the row with the largest of the values that count, the first of equal ones; -1: none.

    Its part is ``(2, a)``: the largest value, -inf where none counts, and the number of its row.
    """

    has_gradient = False

    def __init__(self, values: Tensor, counts: Tensor, first: int = 0) -> None:
        super().__init__(values, counts)
        self.first = first  # the number of the first of these rows

    def result(self) -> Tensor:
        rows = torch.where(self.counts, self.values, -torch.inf).argmax(dim=1, keepdim=True)
        return torch.where(self.counts.gather(1, rows), rows, -1).squeeze(1)

    def part(self) -> Tensor:
        if self.values.shape[1] == 0:
            return widest(self.values.new_full((2, len(self.values)), -torch.inf))
        rows = self.result()
        values = self.values.detach().gather(1, rows.clamp_min(0).unsqueeze(1)).squeeze(1)
        return torch.stack([widest(values.masked_fill(rows < 0, -torch.inf)), widest(rows + self.first)])

    @staticmethod
    def merged(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(other[0] > one[0], other, one)

    def as_result(self, whole: Tensor) -> Tensor:
        return whole.long()


class LogSumExp(Reduction):
    """log Σ exp(values), the smallest finite number where none counts."""

    def result(self) -> Tensor:
        values, counts = self.values, self.counts
        if values.shape[1] == 0:
            return values.new_full((len(values),), torch.finfo(values.dtype).min)
        if counts.dtype != torch.bool:
            values, counts = values + counts.to(values.dtype).clamp_min(1).log(), counts > 0
        return _LogSumExp.apply(values, counts)  # type: ignore[no-any-return]

    @staticmethod
    def merged(one: Tensor, other: Tensor) -> Tensor:
        return torch.logaddexp(one, other)

    @staticmethod
    def derivative(part: Tensor, whole: Tensor) -> Tensor:
        return (part - whole).exp()


class _LogSumExp(torch.autograd.Function):
    """log Σ exp(values) over rows, whose gradient is a softmax."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: Tensor) -> Tensor:
        limits = torch.finfo(values.dtype)
        values = torch.where(mask, values, limits.min)
        largest = values.amax(dim=1, keepdim=True)
        # Numbers that are nearly zero would take a CPU ten to thirty times as long.
        shares = values.sub_(largest).clamp_(min=math.log(limits.tiny) / 2).exp_()
        total = shares.sum(dim=1, keepdim=True)
        ctx.save_for_backward(shares, total)
        return (largest + total.log()).squeeze(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        shares, total = ctx.saved_tensors  # where none counts all do, but the result is not used
        return (gradient.unsqueeze(1) / total) * shares, None


def sum_over_rows(values: Tensor, counts: Tensor) -> Tensor:
    """Returns the sum of the values of every anchor, each as often as it counts, ``(a,)``."""
    # Times a mask takes a CPU six times as long as times numbers, which its bytes become in no time.
    numbers = counts.view(torch.uint8) if counts.dtype == torch.bool else counts
    return (values * numbers.to(values.dtype)).sum(dim=1)


def total(counts: Tensor) -> Tensor:
    """Returns how many pairs of all anchors count, a 0-d int64 tensor."""
    # On a CPU, the sum of a mask would make int64 of all of it.
    return counts.count_nonzero() if counts.dtype == torch.bool else counts.sum()


def with_reductions(found: Result | Reducing[Result]) -> Reducing[Result]:
    """Returns what a function returned that may need reductions, as one that does."""
    return (yield from found) if isinstance(found, Generator) else found


def of_all_rows(found: Result | Reducing[Result]) -> Result:
    """Returns the result of a function that may need reductions, computed of all its rows at once."""
    reducing = with_reductions(found)
    try:
        reductions = next(reducing)
        while True:
            reductions = reducing.send([reduction.result() for reduction in reductions])
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
