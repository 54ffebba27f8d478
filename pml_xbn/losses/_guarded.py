"""What a compiled step depends on besides its batch.

Dynamo, the first stage of ``torch.compile``, checks before every later call that what it has read is as it
was. So the functions of this file that it follows read all that a step may depend on. The names of what there
is are found by functions that it does not follow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from inspect import getattr_static
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..adapters.moments import Moments
from ..pairwise._supported import OF_EVERY_MODULE

_OF_EVERY_MODULE = OF_EVERY_MODULE - {"training"}
# Not subclasses of them: Dynamo takes a float of numpy for a tensor.
_NUMBERS: tuple[type, ...] = (type(None), bool, int, float, str)
_CODE = (FunctionType, MethodType, staticmethod, classmethod, type)


class Names(NamedTuple):
    """The names of a part of a module, and of what it has that not every module has."""

    path: list[str]  # leads to it
    tensors: list[str]
    settings: list[str]  # numbers, strings, and what is made of them
    others: list[str]


def names_of(module: nn.Module) -> list[Names]:
    """Returns the names of a module and of each of its parts; one that is used twice is there twice."""
    found = []
    for path, part in module.named_modules(remove_duplicate=False):
        names = Names(path.split(".") if path else [], [], [], [])
        for name, value in _attributes_of(part):
            kind = names.settings if _is_plain(value) else names.others
            (names.tensors if isinstance(value, (Tensor, Moments)) else kind).append(name)
        found.append(names)
    return found


def what_is_not_seen(module: nn.Module) -> str | None:
    """Returns what a module holds that Dynamo would not see change; None if there is nothing of the kind."""
    for part in module.modules():
        for name, value in _attributes_of(part):
            is_closed = isinstance(value, FunctionType) and value.__closure__ and name in vars(part)
            is_seen = isinstance(value, (Tensor, Moments, *_CODE)) and not is_closed
            if not (is_seen or _is_plain(value)):
                return f"a {type(value).__name__} in its attribute {name!r}"
    return None


def tensors_within(module: nn.Module) -> str | None:
    """Returns where a module holds a tensor in a tuple, list or dict, which no graph takes; None: nowhere."""
    for part in module.modules():
        for name, value in _attributes_of(part):
            values = value.values() if isinstance(value, dict) else value
            if isinstance(value, (tuple, list, dict)) and any(isinstance(x, Tensor) for x in values):
                return f"a tensor within a {type(value).__name__} in its attribute {name!r}"
    return None


def _attributes_of(part: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields what a part and its class have that not every module has, but for properties."""
    own = {**vars(part), **part._buffers, **part._parameters}
    yield from ((name, value) for name, value in own.items() if name not in _OF_EVERY_MODULE)
    for name in sorted({*dir(type(part))} - {*dir(nn.Module)} - own.keys() | {"forward"}):
        value = getattr_static(type(part), name)
        if not (name.startswith("__") or isinstance(value, (property, cached_property))):
            yield name, value


def _is_plain(value: Any, within: tuple[int, ...] = ()) -> bool:
    """Returns whether a value is a number or a string, or a container or an object of such alone."""
    if type(value) in _NUMBERS or isinstance(value, (torch.dtype, torch.device, Enum)):
        return True
    kind, inner = type(value), value
    if kind in (dict, OrderedDict):
        inner = [*value, *value.values()]
    elif _is_object_of_python(value):
        inner = vars(value).values()
    elif not (isinstance(value, tuple) or kind in (list, set, frozenset)):
        return False
    return id(value) not in within and all(_is_plain(x, (*within, id(value))) for x in inner)


def _is_object_of_python(value: object) -> bool:
    """Returns whether all that an object holds has a name, as what one of a dataclass holds has."""
    kind = type(value)
    if isinstance(value, (nn.Module, Tensor, *_CODE)) or not hasattr(value, "__dict__"):
        return False
    has_slots = any("__slots__" in vars(x) for x in kind.__mro__)
    return isinstance(value, SimpleNamespace) or (kind.__new__ is object.__new__ and not has_slots)


def settings_of(part: nn.Module, names: Names) -> list[object]:
    """Returns the settings of a part, as numbers and strings, and reads all else that is no tensor."""
    # Of a dict that is unpacked in place Dynamo checks nothing.
    found: list[object] = [*tuple(part._modules), *tuple(part._buffers), *tuple(part._parameters)]
    for name in names.settings:
        found += _numbers_in(getattr(part, name))
    for name in names.others:
        value = getattr(part, name)
        if isinstance(value, MethodType):
            found += [value.__name__, value.__self__ is part]
    return found


def _numbers_in(value: Any) -> list[object]:
    if value is None or isinstance(value, (bool, int, float, str)):
        return [value]
    if isinstance(value, (torch.dtype, torch.device, Enum)):
        return []
    if isinstance(value, (tuple, list, set, frozenset)):
        return [len(value), *[x for item in value for x in _numbers_in(item)]]
    items = value.items() if isinstance(value, (dict, OrderedDict)) else vars(value).items()
    return [x for name, item in items for x in (name, *_numbers_in(item))]
