"""Whether the host may read numbers of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

_PROXY = torch._C._TorchDispatchModeKey.PROXY


def is_tracing() -> bool:
    """Returns whether a graph is made of the operations, by ``torch.compile`` or ``make_fx``."""
    return torch.compiler.is_compiling() or torch._C._get_dispatch_mode(_PROXY) is not None


def can_read(values: Tensor) -> bool:
    """Returns whether the host reads numbers of this tensor without waiting for a device."""
    return values.device.type == "cpu" and not is_tracing()
