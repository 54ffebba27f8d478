"""Sums of parts, each of which is forgotten when its gradient is known."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

# Several matrices of that size are to fit into a CPU's cache.
_PAIRS_AT_ONCE = {"cpu": 2**19, "gpu": 2**24}

# 32 MiB, from which on Linux takes as long for the memory as for what is done with it.
_PRODUCTS_AT_ONCE = 2**23
_FEWEST_VECTORS = 64  # to be multiplied with all rows, which takes a pass over them

# Numbers of some rows of a matrix, these rows, sums (k,) of terms of theirs, and counts (k,), int64.
Part = tuple[Any, Tensor, Tensor, Tensor]


def num_at_once(mat: Tensor, num_columns: int) -> int:
    """How many rows of so many columns to compute at a time, where ``mat`` is."""
    return max(1, _PAIRS_AT_ONCE["cpu" if mat.device.type == "cpu" else "gpu"] // max(1, num_columns))


def num_vectors_at_once(num_rows: int) -> int:
    """How many vectors to multiply with so many rows at a time; few take as long as many."""
    return max(_FEWEST_VECTORS, _PRODUCTS_AT_ONCE // max(1, num_rows))


def summed(parts: Callable[[Tensor], Iterator[Part]], mat: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
    """The parts' sums ``(k,)``, with gradient, and their counts ``(k,)``.

    One matrix per sum is kept, of gradients; a second backward, or one with create_graph=True, computes them
    again.

    Args:
        parts: of the matrix; one or more.
        mat: ``(a, ...)``.
        learned: what else the sums depend on.
    """
    is_differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (mat, *learned))
    # What the graph saves goes after its backward pass, and what the parts are of with it.
    with saved_tensors_hooks(lambda saved: (saved, parts), lambda packed: packed[0]):
        totals, counts = _Sums.apply(parts, is_differentiated, mat, *learned)
    return totals, counts


class _Sums(torch.autograd.Function):
    """Sums, with their gradients computed along with them."""

    @staticmethod
    def forward(
        ctx: Any, parts: Any, is_differentiated: bool, mat: Tensor, *learned: Tensor
    ) -> tuple[Tensor, Tensor]:
        totals, counts = [], []
        gradients: list[list[Tensor]] = []  # of every sum those of the matrix and of what is learned
        leaf = mat.detach().requires_grad_(is_differentiated)
        with torch.set_grad_enabled(is_differentiated):
            for rows, part, sums, numbers in parts(leaf):
                totals.append(sums.detach())
                counts.append(numbers)
                if not is_differentiated:
                    continue
                if not gradients:
                    gradients = [[torch.zeros_like(x) for x in (mat, *learned)] for _ in sums]
                for of_sum, total in zip(gradients, sums, strict=True):
                    has_more = of_sum is not gradients[-1]
                    of_part, *rest = _gradients(total, part, *learned, retain_graph=has_more)
                    of_sum[0][rows] += of_part
                    for of_x, gradient in zip(of_sum[1:], rest, strict=True):
                        of_x += gradient
        ctx.parts, ctx.gradients = weakref.ref(parts), gradients
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
            total = torch.stack([sums for *_, sums, _ in ctx.parts()(mat)]).sum(dim=0)
        options = {"grad_outputs": of_sums, "create_graph": is_differentiated}
        return None, None, *_gradients(total, mat, *learned, **options)


def _weighted(weights: Tensor, parts: tuple[Tensor, ...]) -> Tensor:
    """The weighted sum, in place of the first part."""
    weights = weights.to(parts[0])
    total = parts[0].mul_(weights[0])
    for weight, part in zip(weights[1:], parts[1:], strict=True):
        total.addcmul_(part, weight)
    return total


def _gradients(total: Tensor, *inputs: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Of what need not depend on all of them."""
    if not total.requires_grad:
        return tuple(torch.zeros_like(x) for x in inputs)
    return torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True, **options)
