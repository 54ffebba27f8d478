"""An act that a device may refuse: what it returned, or what it raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def attempt(act: Callable[[], T]) -> tuple[T | None, str]:
    """Returns what an act returns, and what it raised in one line; the others go on after an error.

    Example:
        >>> attempt(lambda: 1 / 0)
        (None, 'ZeroDivisionError: division by zero')
    """
    try:
        return act(), ""
    except Exception as error:  # whatever a device may raise
        return None, f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
