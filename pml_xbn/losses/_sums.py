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

_FEWEST_VECTORS = 64  # to be multiplied with all rows, which takes a pass over them

# Numbers of some rows of a matrix, these rows, sums (k,) of terms of theirs, and counts (k,), int64.
Part = tuple[Any, Tensor, Tensor, Tensor]


def num_at_once(mat: Tensor, num_columns: int) -> int:
    """How many rows of so many columns to compute at a time, where ``mat`` is."""
    return max(1, _PAIRS_AT_ONCE["cpu" if mat.device.type == "cpu" else "gpu"] // max(1, num_columns))


def num_vectors_at_once(rows: Tensor) -> int:
    """How many vectors to multiply with all rows ``(n, d)`` at a time."""
    return max(_FEWEST_VECTORS, num_at_once(rows, len(rows)))


def summed(parts: Callable[[Tensor], Iterator[Part]], mat: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
    """The parts' sums ``(k,)``, with gradient, and their counts ``(k,)``.

    One matrix per sum is kept, of gradients; a backward with create_graph=True computes them again, to
    differentiate them.

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
        gradients, of_learned = mat.new_empty(0), [x.new_empty(0) for x in learned]
        leaf = mat.detach().requires_grad_(is_differentiated)
        with torch.set_grad_enabled(is_differentiated):
            for rows, part, sums, numbers in parts(leaf):
                totals.append(sums.detach())
                counts.append(numbers)
                if not is_differentiated:
                    continue
                if len(gradients) == 0:
                    gradients = mat.new_zeros(len(sums), *mat.shape)
                    of_learned = [x.new_zeros(len(sums), *x.shape) for x in learned]
                for k, total in enumerate(sums):
                    is_last = k + 1 == len(sums)
                    of_part, *rest = _gradients(total, part, *learned, retain_graph=not is_last)
                    gradients[k, rows] += of_part
                    for of_x, gradient in zip(of_learned, rest, strict=True):
                        of_x[k] += gradient
        ctx.parts = weakref.ref(parts)
        ctx.save_for_backward(mat, gradients, *learned, *of_learned)
        count = torch.stack(counts).sum(dim=0)
        ctx.mark_non_differentiable(count)
        return torch.stack(totals).sum(dim=0), count

    @staticmethod
    def backward(ctx: Any, of_sums: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        mat, gradients, *saved = ctx.saved_tensors
        learned, of_learned = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        if torch.is_grad_enabled():
            total = sum((sums * of_sums).sum() for *_, sums, _ in ctx.parts()(mat))
            return None, None, *_gradients(total, mat, *learned, create_graph=True)
        return None, None, *(torch.tensordot(of_sums.to(x), x, dims=1) for x in (gradients, *of_learned))


def _gradients(total: Tensor, *inputs: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Of a sum that need not depend on all of them."""
    if not total.requires_grad:
        return tuple(torch.zeros_like(x) for x in inputs)
    return torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True, **options)
