"""A command cut short by the environment, so that it can be tried as it is written, without a flag."""

from __future__ import annotations

import os

_VARIABLE = "PML_XBN_MAX_STEPS"
_CLASSES = 24  # of Glyphs for every step


def at_most(number: int, each: int = 1) -> int:
    """Returns ``number``, or at most ``each`` for every step that PML_XBN_MAX_STEPS allows."""
    steps = os.environ.get(_VARIABLE, "")
    if not steps:
        return number
    if not steps.isdecimal() or not int(steps):
        raise ValueError(f"{_VARIABLE} is {steps!r}; it must be a whole number above 0, or not be set")
    return min(number, each * int(steps))


def first_classes(labels: int, classes: int | None) -> int:
    """Returns how many classes of Glyphs are used: ``classes``, or all ``labels``, cut short likewise."""
    return at_most(labels if classes is None else classes, _CLASSES)
