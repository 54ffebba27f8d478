"""Parameters that a class shares with its base, and methods that it does not call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


def parameters_of(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the values that a class takes as parameters."""
    return {name: values[name] for name in inspect.signature(cls).parameters}


def refuse_overrides(cls: type, base: type, *names: str) -> None:
    """Raises a TypeError if a class from outside of this package overrides methods of ``base``, in vain."""
    for name in names:
        if not getattr(cls, name).__module__.startswith((__package__, base.__module__)):
            raise TypeError(
                f"{cls.__name__} overrides {name}, which is not called: pass a miner, or register a "
                "memory hook"
            )
