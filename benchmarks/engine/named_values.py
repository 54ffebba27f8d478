"""Flags of the form ``name=value``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Annotated, Any

from tyro.constructors import PrimitiveConstructorSpec


def _named(words: Sequence[str]) -> dict[str, Any]:
    """Returns the values of ``name=value`` by name: Python literals, and anything else as text."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise ValueError(f"{word!r} is not of the form name=value")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


NamedValues = Annotated[
    dict[str, Any],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE",
        instance_from_str=_named,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda values: [f"{name}={value}" for name, value in values.items()],
    ),
]
