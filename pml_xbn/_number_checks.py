"""Checks of settings; every error names the setting, its value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable


def check_integer(name: str, value: int, at_least: int) -> None:
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_integer or value < at_least:
        raise ValueError(f"{name}={value!r}: pass an integer, {at_least} or more")


def check_non_negative(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}={value!r}: pass a finite number, 0 or more")


def check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}={value!r}: pass a finite number above 0")


def check_one_of(name: str, value: object, choices: Iterable[object]) -> None:
    if value not in (known := tuple(choices)):
        raise ValueError(f"{name}={value!r}: pass one of {', '.join(map(str, known))}")
