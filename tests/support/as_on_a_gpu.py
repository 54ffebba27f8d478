"""A CPU that is treated as a GPU: whether the host reads numbers of tensors is for a test to say."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from torch import Tensor


def read_as(monkeypatch: pytest.MonkeyPatch, can_read: Callable[[Tensor], bool]) -> None:
    """Replaces ``can_read`` in every module of the package that has it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pml_xbn") and hasattr(module, "can_read"):
            monkeypatch.setattr(module, "can_read", can_read)
