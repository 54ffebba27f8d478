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
    """Whether somebody looks at what the module, or one inside it, is called with, or at its gradient."""
    names = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    hooks = (getattr(m, f"_{name}") for m in module.modules() for name in names)
    of_all_modules = (getattr(torch_module, f"_global_{name}") for name in names)
    return any(hooks) or any(of_all_modules)


@cache
def _twin_class(*classes: type) -> Any:
    def getattribute(twin: Any, name: str) -> Any:
        ours = object.__getattribute__(twin, "_ours")
        return ours[name] if name in ours else object.__getattribute__(twin, name)

    namespace = {"__slots__": ("_ours",), "__getattribute__": getattribute}
    return type(classes[0].__name__, classes, namespace)
