"""Losses that need no more of the matrix than an anchor's row, computed some anchors at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytorch_metric_learning.losses import GenericPairLoss, MultiSimilarityLoss, SupConLoss
from torch import Tensor

# PML's losses whose element for an anchor comes from the anchor's row alone.
_BY_ANCHOR = (MultiSimilarityLoss, SupConLoss)
# 32 MiB of float32 on a CPU: as fast as less, and the C library gives back at once what it lends in such
# pieces. A GPU wants larger ones.
_PAIRS_AT_ONCE = {"cpu": 2**23, "gpu": 2**24}

Compute = Callable[[Tensor, Tensor, Tensor], dict[str, Any]]


def are_worth_it(loss: GenericPairLoss, mat: Tensor) -> bool:
    """Whether the loss of a matrix of distances ``(a, n)`` can be sliced, and the matrix is large.

    Not in half precision: the gradient of an element is not yet scaled by a GradScaler and underflows.
    """
    return (
        _num_at_once(mat) < len(mat)
        and mat.shape[1] > 1
        and mat.dtype in (torch.float32, torch.float64)
        and type(loss) in _BY_ANCHOR
        # A learnable temperature, say: its gradient would be lost.
        and not any(isinstance(value, Tensor) for value in (*loss.parameters(), *vars(loss).values()))
    )


def sliced_losses(loss: GenericPairLoss, mat: Tensor, positive: Tensor, negative: Tensor) -> dict[str, Any]:
    """What ``loss._compute_loss`` returns, for a loss and a matrix that are worth it.

    Such losses make about eight matrices of the size of ``mat`` on their way. In slices, one is kept, of
    gradients; a backward with create_graph=True computes them again, to differentiate them.

    Args:
        positive, negative: masks of the pairs, ``(a, n)`` each, bool, with at least one pair each.
    """
    is_differentiated = mat.requires_grad and torch.is_grad_enabled()
    elements = _Slices.apply(mat, positive, negative, loss._compute_loss, is_differentiated)
    anchors = torch.arange(len(mat), device=mat.device)
    return {"loss": {"losses": elements, "indices": anchors, "reduction_type": "element"}}


def _num_at_once(mat: Tensor) -> int:
    return max(1, _PAIRS_AT_ONCE["cpu" if mat.device.type == "cpu" else "gpu"] // mat.shape[1])


class _Slices(torch.autograd.Function):
    """Elements of a loss, with the gradient of each computed along with it."""

    @staticmethod
    def forward(
        ctx: Any,
        mat: Tensor,
        positive: Tensor,
        negative: Tensor,
        compute: Compute,
        is_differentiated: bool,
    ) -> Tensor:
        at_once = _num_at_once(mat)
        gradient = torch.empty_like(mat) if is_differentiated else None
        buffers = _with_nobody(mat.new_zeros(3, at_once + 1, mat.shape[1]))
        elements = []
        for first in range(0, len(mat), at_once):
            chosen = slice(first, first + at_once)
            num_anchors = len(mat[chosen])
            part, *masks = (buffer[at_once - num_anchors :] for buffer in buffers)
            for out, rows in zip((part, *masks), (mat, positive, negative), strict=True):
                out[:num_anchors].copy_(rows[chosen])
            part = part.detach().requires_grad_(is_differentiated)
            with torch.set_grad_enabled(is_differentiated):
                values: Tensor = compute(part, *masks)["loss"]["losses"][:num_anchors]
                if gradient is not None:
                    gradient[chosen] = torch.autograd.grad(values.sum(), part)[0][:num_anchors]
            elements.append(values.detach())
        ctx.compute = compute
        ctx.save_for_backward(mat, positive, negative, gradient)
        return torch.cat(elements)

    @staticmethod
    def backward(ctx: Any, of_elements: Tensor) -> tuple[Tensor | None, ...]:
        mat, positive, negative, gradient = ctx.saved_tensors
        of_elements = of_elements.view(-1, 1)
        if torch.is_grad_enabled():
            gradient = _differentiable_gradient(mat, positive, negative, ctx.compute)
        return gradient * of_elements, None, None, None, None


def _differentiable_gradient(mat: Tensor, positive: Tensor, negative: Tensor, compute: Compute) -> Tensor:
    """Of every element, with respect to its row of the matrix."""
    nobody = _with_nobody(mat.new_zeros(3, 1, mat.shape[1]))
    gradients = []
    for part in zip(*(x.split(_num_at_once(mat)) for x in (mat, positive, negative)), strict=True):
        padded = [torch.cat([x.to(mat.dtype), row]) for x, row in zip(part, nobody, strict=True)]
        values = compute(*padded)["loss"]["losses"][:-1]
        gradients += torch.autograd.grad(values.sum(), part[0], create_graph=True)
    return torch.cat(gradients)


def _with_nobody(buffers: Tensor) -> Tensor:
    """Matrix and masks ``(3, k, n)``, whose last row is no anchor, and has a pair of each kind.

    Without one, SupConLoss would take a slice for a batch that has nothing to lose.
    """
    buffers[1, -1, 0] = buffers[2, -1, 1] = 1
    return buffers
