"""Code that ``torch.compile`` leaves alone."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def eager(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function, which runs as it is written also in a module that is compiled.

    ``torch.compiler.disable`` as a decorator would import all of Dynamo along with the package, which takes
    seconds. Where nobody has imported it yet, nobody compiles.
    """
    disabled: Callable[..., Result] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if disabled is None:
            disabled = torch.compiler.disable(function)
        return disabled(*args, **kwargs)

    return call
