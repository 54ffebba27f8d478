"""A loss whose gradients are computed with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class KnownGradients(torch.autograd.Function):
    """A loss of known gradients, which are all that its graph keeps; they cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, known: tuple[Tensor, list[Tensor]], *inputs: Tensor) -> Tensor:
        value, gradients = known
        ctx.save_for_backward(*gradients)
        with torch.enable_grad():
            # Numbers whose graphs lead to the inputs, and which do not keep these in memory as the inputs
            # themselves would be.
            ctx.sums = list(map(torch.sum, inputs))
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
