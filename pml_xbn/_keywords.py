"""Parameters that a class shares with its base."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


def parameters_of(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the values that a class takes as parameters."""
    return {name: values[name] for name in inspect.signature(cls).parameters}
