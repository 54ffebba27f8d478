"""The twin of a module: its state, and some attributes of ours, which the module itself never sees."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from torch import nn
from torch.nn.modules import module as torch_module

T = TypeVar("T", bound=nn.Module)


def twin_of(module: T, *classes: type, **ours: Any) -> T:
    """A module with the state of this one, hooks included, in which some attributes are ours.

    What the twin sets in itself, such as statistics, the module has. Nobody else notices ``ours``.

    Args:
        classes: the twin is of these instead of the module's class, of which they are subclasses.
    """
    twin = object.__new__(_twin_class(*(classes or (type(module),))))
    object.__setattr__(twin, "__dict__", module.__dict__)
    object.__setattr__(twin, "_ours", ours)
    return twin  # type: ignore[no-any-return]


def is_as_built(module: nn.Module) -> bool:
    """Whether no method of the module has been replaced or compiled, so that a twin's call is the twin's."""
    return not any(hasattr(type(module), name) for name in vars(module))


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody looks at what the module, or one inside it, is called with."""
    hooks = (hook for m in module.modules() for hook in (m._forward_hooks, m._forward_pre_hooks))
    of_all_modules = torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks
    return any(hooks) or any(of_all_modules)


@cache
def _twin_class(*classes: type) -> Any:
    def getattribute(twin: Any, name: str) -> Any:
        ours = object.__getattribute__(twin, "_ours")
        return ours[name] if name in ours else object.__getattribute__(twin, name)

    namespace = {"__slots__": ("_ours",), "__getattribute__": getattribute}
    return type(classes[0].__name__, classes, namespace)
