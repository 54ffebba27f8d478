"""Functions that torch.compile leaves as they are."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def eager(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns the function as one that runs as it is written in a compiled module too."""

    # As a decorator, torch.compiler.disable would import Dynamo, which takes seconds, along with the package.
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_compiling = "torch._dynamo" in sys.modules
        return (torch.compiler.disable(function) if is_compiling else function)(*args, **kwargs)

    return call
