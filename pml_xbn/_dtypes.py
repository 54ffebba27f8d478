"""How precisely to compute."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(rows: Tensor) -> Tensor:
    """Returns ``rows`` in float32, or in its own dtype where that is more precise."""
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def widest(values: Tensor) -> Tensor:
    """``values`` in float64, or in float32 on devices that know no float64."""
    return values.float() if values.device.type == "mps" else values.double()
