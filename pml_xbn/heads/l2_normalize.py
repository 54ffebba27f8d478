"""A layer that gives rows unit length."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import normalize

from .._arithmetic import at_least_float32


class L2Normalize(nn.Module):
    """Gives every row unit L2 norm; a row of zeros stays as it is.

    Example:
        >>> import torch
        >>> L2Normalize()(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """

    def forward(self, rows: Tensor) -> Tensor:
        """Maps rows ``(b, d)`` to rows ``(b, d)`` of the same dtype, computed in float32 or better."""
        return normalize(at_least_float32(rows), dim=1).to(rows.dtype)
