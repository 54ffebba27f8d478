"""Functions that are shown what a memory's loss is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Before a memory computes a loss without calling it, they are called with the arguments of such a call.
observers: list[Callable[..., object]] = []


def show(arguments: Callable[[], tuple[Any, ...]]) -> None:
    """Shows all observers the arguments, which are made only if there are any."""
    if observers:
        given = arguments()
        for observer in observers:
            observer(*given)
