"""Whether a user's loss or miner is PML's, as PML wrote it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
# What Python writes into every class.
_OF_EVERY_CLASS = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__"}
_OF_EVERY_CLASS |= {"__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"}
_OF_EVERY_CLASS |= {"__parameters__", "__orig_bases__", "__firstlineno__", "__static_attributes__"}


def unchanged_class(own: type, kinds: Iterable[type]) -> type | None:
    """Returns which of these classes a class is, or inherits from without a change; None if it is none.

    A subclass may have methods and attributes of its own, but none that its base class has too.
    """
    for number, kind in enumerate(own.__mro__):
        if kind in kinds:
            subclasses = own.__mro__[:number]
            names = {name for subclass in subclasses for name in vars(subclass)} - _OF_EVERY_CLASS
            return None if any(hasattr(kind, name) for name in names) else kind
    return None


def is_unchanged(module: nn.Module, *, allow_stats: bool = False) -> bool:
    """Returns whether a module and its parts have no hook, no method of their own, and keep no statistics."""
    for part in module.modules():
        attributes = vars(part)
        for name in _HOOKS:
            if attributes[name]:
                return False
        for name in attributes:
            if name not in _OF_EVERY_MODULE and hasattr(type(part), name):
                return False
        if attributes.get("collect_stats") and not allow_stats:
            return False
    return True
