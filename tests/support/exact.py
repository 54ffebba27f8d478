"""The state of a module as bits, so that two of them are equal or not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def exact(state: nn.Module | dict[str, Any]) -> dict[str, object]:
    """A copy of a state, of which no digit is left out as in print; of a DTensor this rank's part."""
    values = state.state_dict() if isinstance(state, nn.Module) else state
    return {name: _bits(value) for name, value in values.items()}


def _bits(value: Any) -> object:
    if not isinstance(value, Tensor):
        return repr(value)
    own = value.to_local() if hasattr(value, "to_local") else value
    numbers = own.detach().cpu().contiguous().flatten().view(torch.uint8)
    return own.dtype, tuple(own.shape), numbers.numpy().tobytes()
