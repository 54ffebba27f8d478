"""Memory for the rows of the next step, used again only when nothing can still need what it holds."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Token:
    """Lives as long as the graph that it was left in."""


# Returns None once the graph is gone.
Reader = Callable[[], object]


class RowBuffers:
    """The spare one of two buffers that take turns in holding the rows.

    A step reads the rows from one buffer and writes them, adapted, to the other; when it has succeeded
    the two change places. To write to the same two in turn spares a CPU the page faults of a fresh
    allocation, which cost more than the writing. But the graph of a loss that has not been through its
    backward pass may need the rows of its step, so every loss leaves a token in its graph, and a buffer
    is written to only when the tokens of all losses that read it are gone.
    """

    def __init__(self) -> None:
        self._spare: Tensor | None = None
        self._spares_readers: list[Reader] = []
        self._readers: list[Reader] = []

    def take(self, like: Tensor) -> Tensor:
        """The spare buffer, or a new one of zeros. It is lost unless :meth:`swap` brings the next."""
        spare, self._spare = self._spare, None
        if spare is None or any(reader() is not None for reader in self._spares_readers):
            return torch.zeros_like(like)
        if (spare.shape, spare.dtype, spare.device) != (like.shape, like.dtype, like.device):
            return torch.zeros_like(like)
        return spare

    def swap(self, old: Tensor, reader: Reader | None) -> None:
        """The rows have moved from ``old`` to the buffer taken last, which ``reader`` read."""
        self._spare, self._spares_readers = old, self._readers
        self._readers = [] if reader is None else [reader]

    def read_by(self, reader: Reader | None) -> None:
        """The rows stay where they are, and ``reader`` read them."""
        self._readers = [r for r in self._readers if r() is not None]
        if reader is not None:
            self._readers.append(reader)

    def lend(self) -> None:
        """Somebody may keep the rows for good, where they are."""
        self._readers.append(lambda: True)

    def drop(self) -> None:
        """Gives the spare buffer up."""
        self.__init__()  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a copy starts without a spare

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.drop()


class _LeaveToken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, token: _Token) -> Tensor:
        ctx.token = token
        return loss.clone()  # a view could not be modified in place, as PML's trainers do

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def traced(loss: Tensor) -> tuple[Tensor, Reader | None]:
    """The loss with a token in its graph, and a reference by which to see whether the graph is gone."""
    if not loss.requires_grad:
        return loss, None
    token = _Token()
    traced_loss: Tensor = _LeaveToken.apply(loss, token)
    return traced_loss, weakref.ref(token)
