"""Keywords that a class shares with its base, or does not know, and their descriptions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

# An entry of the section Args of a docstring without its common indent: a name, and lines indented further.
_ENTRY = re.compile(r"^    (\w+):.*\n(?:^ {8,}.*\n)*", re.MULTILINE)


def parameters_of(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the values that a class takes as named parameters."""
    parameters = inspect.signature(cls).parameters.values()
    return {x.name: values[x.name] for x in parameters if x.kind is not x.VAR_KEYWORD}


def refuse_keywords(cls: type, unknown: Mapping[str, object]) -> None:
    """Raises a TypeError if there are unknown keywords, which names the nearest known one.

    Example:
        >>> from pml_xbn import XBNWrapper
        >>> refuse_keywords(XBNWrapper, {"memory_sizee": 64})
        Traceback (most recent call last):
        TypeError: XBNWrapper has no keyword 'memory_sizee': did you mean 'memory_size'?
    """
    if not unknown:
        return
    initializers = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]
    known = {name for function in initializers for name in inspect.signature(function).parameters}
    known -= {"self", "args", "kwargs", "unknown"}
    name = next(iter(unknown))
    nearest = get_close_matches(name, known, n=1)
    remedy = f"did you mean {nearest[0]!r}?" if nearest else f"pass some of {', '.join(sorted(known))}"
    raise TypeError(f"{cls.__name__} has no keyword {name!r}: {remedy}")


def describe_others(cls: Class) -> Class:
    """Replaces the entry ``others`` of a docstring by the base's descriptions of parameters.

    So ``help`` shows each parameter where it is asked for, and each is described once in the source.
    """
    base = cls.__base__
    if cls.__doc__ is None or base is None or base.__doc__ is None:  # as with python -OO
        return cls
    # Python 3.13 removes the common indent when it compiles a docstring; earlier ones leave it in.
    own, inherited = inspect.cleandoc(cls.__doc__), inspect.cleandoc(base.__doc__)
    entries = {match[1]: match[0] for match in _ENTRY.finditer(own)}
    from_base = (match for match in _ENTRY.finditer(inherited) if match[1] not in entries)
    cls.__doc__ = own.replace(entries["others"], "".join(match[0] for match in from_base))
    return cls
