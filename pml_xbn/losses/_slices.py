"""Sums of a loss's terms, computed some anchors at a time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ._forms import Form, Pairs
from ._rules import Rule

# A form makes several matrices of the size of a slice, which a CPU is to find in its cache.
_PAIRS_AT_ONCE = {"cpu": 2**19, "gpu": 2**24}

Sums = Callable[[Pairs], tuple[Tensor, Tensor]]


def fractions(loss: Any, form: Form, rules: dict[str, Rule], pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Sums ``(k,)``, with gradient, and counts ``(k,)``, int64, of the loss's parts that have a rule.

    In slices, one matrix per part is kept, of gradients; a second backward, or one with create_graph=True,
    computes them again.
    """

    def sums(part: Pairs) -> tuple[Tensor, Tensor]:
        terms = form.terms(loss, part)
        of_parts = [terms[name].fraction(rule, part.labels) for name, rule in rules.items()]
        return torch.stack([total for total, _ in of_parts]), torch.stack([count for _, count in of_parts])

    is_one_slice = _num_at_once(pairs.mat) >= len(pairs.mat) or pairs.mat.shape[1] == 1
    if is_one_slice or not form.is_by_anchor:
        return sums(pairs)
    learned = _learned(loss)
    is_differentiated = torch.is_grad_enabled() and (pairs.mat.requires_grad or bool(learned))

    def by_slices(mat: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Anchors, their part of the matrix, sums and counts of every slice."""
        for first in range(0, len(mat), _num_at_once(mat)):
            anchors = slice(first, first + _num_at_once(mat))
            part = pairs.of_anchors(anchors)._replace(mat=mat[anchors])
            yield anchors, part.mat, *sums(part)

    # What the graph saves goes after its backward pass, and the pairs with it.
    with saved_tensors_hooks(lambda saved: (saved, by_slices), lambda packed: packed[0]):
        totals, counts = _Slices.apply(by_slices, is_differentiated, pairs.mat, *learned)
    return totals, counts


def _num_at_once(mat: Tensor) -> int:
    return max(1, _PAIRS_AT_ONCE["cpu" if mat.device.type == "cpu" else "gpu"] // mat.shape[1])


def _learned(loss: Any) -> list[Tensor]:
    """What else than the matrix gets a gradient: a temperature, say."""
    tensors = [*loss.parameters(), *(x for x in vars(loss).values() if isinstance(x, Tensor))]
    return [x for x in tensors if x.requires_grad]


class _Slices(torch.autograd.Function):
    """Sums, with their gradients computed along with them."""

    @staticmethod
    def forward(
        ctx: Any, by_slices: Any, is_differentiated: bool, mat: Tensor, *learned: Tensor
    ) -> tuple[Tensor, Tensor]:
        totals, counts = [], []
        gradients: list[list[Tensor]] = []  # of every sum those of the matrix and of what is learned
        leaf = mat.detach().requires_grad_(is_differentiated)
        with torch.set_grad_enabled(is_differentiated):
            for anchors, part, sums, numbers in by_slices(leaf):
                totals.append(sums.detach())
                counts.append(numbers)
                if not is_differentiated:
                    continue
                if not gradients:
                    gradients = [[torch.empty_like(mat), *map(torch.zeros_like, learned)] for _ in sums]
                for of_sum, total in zip(gradients, sums, strict=True):
                    has_more = of_sum is not gradients[-1]
                    of_sum[0][anchors], *rest = _gradients(total, part, *learned, retain_graph=has_more)
                    for of_x, gradient in zip(of_sum[1:], rest, strict=True):
                        of_x += gradient
        ctx.by_slices, ctx.gradients = weakref.ref(by_slices), gradients
        ctx.save_for_backward(mat, *learned)
        count = torch.stack(counts).sum(dim=0)
        ctx.mark_non_differentiable(count)
        return torch.stack(totals).sum(dim=0), count

    @staticmethod
    def backward(ctx: Any, of_sums: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        # The first backward writes to them; one more, or one that is to be differentiated, has none.
        gradients, ctx.gradients = ctx.gradients, None
        is_differentiated = torch.is_grad_enabled()
        if gradients and not is_differentiated:
            return None, None, *(_weighted(of_sums, parts) for parts in zip(*gradients, strict=True))
        mat, *learned = ctx.saved_tensors
        mat = mat if is_differentiated else mat.detach().requires_grad_()
        with torch.enable_grad():
            total = torch.stack([sums for *_, sums, _ in ctx.by_slices()(mat)]).sum(dim=0)
        options = {"grad_outputs": of_sums, "create_graph": is_differentiated}
        return None, None, *_gradients(total, mat, *learned, **options)


def _weighted(weights: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
    """The weighted sum, in place of the first part."""
    total = parts[0].mul_(weights[0])
    for weight, part in zip(weights[1:], parts[1:], strict=True):
        total.addcmul_(part, weight)
    return total


def _gradients(total: Tensor, *inputs: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Of what need not depend on all of them."""
    if not total.requires_grad:
        return tuple(torch.zeros_like(x) for x in inputs)
    return torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True, **options)
