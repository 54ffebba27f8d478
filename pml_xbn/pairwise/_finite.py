"""The loss is NaN if an anchor or a row is not finite, even if masks or miners leave it out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def zero_if_finite(*tensors: Tensor) -> Tensor:
    """Returns zero, a 0-d tensor, and NaN if one of the numbers is NaN or inf."""
    # Times zero before they are summed, as a sum of finite numbers may be inf.
    return torch.cat([x.reshape(-1) for x in tensors]).mul_(0).sum()


def nan_unless_zero(value: Any, zero: Tensor | float) -> Any:
    """Returns the loss, or NaN with a gradient of NaN if ``zero`` is NaN.

    A reducer's result that is no tensor is returned unchanged.
    """
    if not isinstance(value, Tensor):
        return value
    return value * (zero.to(value) + 1 if isinstance(zero, Tensor) else zero + 1)
