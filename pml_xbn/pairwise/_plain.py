"""Whether anybody has changed a module of PML's, or looks into it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from torch import nn
from torch.nn.modules import module as torch_module

Function = TypeVar("Function", bound=Callable[..., Any])

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(module: nn.Module, *, allow_stats: bool = False) -> bool:
    """Returns whether the module and all inside it do no more than their classes say.

    That is: no method was replaced, no hook could change a result, and no statistics are collected.
    """
    for name in _HOOKS:
        if getattr(torch_module, f"_global{name}"):
            return False
    for part in module.modules():
        kind: Any = type(part)
        attributes = vars(part)
        for name in _HOOKS:
            for hook in attributes[name].values():
                if not hasattr(hook, "only_looks"):
                    return False
        has_stats = attributes.get("collect_stats") and not allow_stats
        if has_stats or not _names_of_class(kind).isdisjoint(attributes):
            return False
    return True


@cache
def _names_of_class(kind: type) -> frozenset[str]:
    return frozenset(dir(kind))


def only_looks(hook: Function) -> Function:
    """Marks a hook of a loss that changes nothing: the loss is computed as without it, and then once more."""
    hook.only_looks = True  # type: ignore[attr-defined]
    return hook
