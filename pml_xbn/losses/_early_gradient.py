"""A loss whose gradient is computed along with it, so that its graph keeps no rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._slices import learned_tensors


class EarlyGradient:
    """Gradients of a loss with respect to anchors, and to what the loss learns, taken before it is returned.

    Attributes:
        leaf: what to compute the loss from, ``(a, d)``.
    """

    def __init__(self, anchors: Tensor, loss: Any) -> None:
        self._inputs = [x for x in (anchors, *learned_tensors(loss)) if x.requires_grad]
        self._anchors, self.leaf = anchors, anchors
        self._is_needed = torch.is_grad_enabled() and len(self._inputs) > 0
        if self._is_needed:
            self.leaf = anchors.detach().requires_grad_(anchors.requires_grad)

    def attached_to(self, loss: Tensor) -> Tensor:
        """Returns the loss with its gradients, which are all that its graph keeps.

        They cannot be differentiated again: a second derivative raises a RuntimeError.
        """
        if not (self._is_needed and loss.requires_grad):
            return loss
        leaves = [self.leaf if x is self._anchors else x for x in self._inputs]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        value: Tensor = _KnownGradient.apply(loss.detach(), gradients, *self._inputs)
        return value


class _KnownGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: tuple[Tensor, ...], *_: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        return loss.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_loss: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(of_loss * gradient for gradient in ctx.saved_tensors)
