"""Whether anybody has changed a module of PML's, or looks into it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

Function = TypeVar("Function", bound=Callable[..., Any])

_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def is_plain(module: nn.Module, *, allow_stats: bool = False) -> bool:
    """Returns whether the module and all inside it work as their classes say.

    That is: no method was replaced, no hook could change a result, and no statistics are collected.
    """
    for name in _HOOKS:
        if getattr(torch_module, f"_global_{name}"):
            return False
    for part in module.modules():
        kind: Any = type(part)
        attributes = vars(part)
        if attributes.get("collect_stats") and not allow_stats:
            return False
        if not _names_of_class(kind).isdisjoint(attributes):
            return False
        for name in _HOOKS:
            for hook in attributes[f"_{name}"].values():
                if not hasattr(hook, "only_looks"):
                    return False
    return True


@cache
def _names_of_class(kind: type) -> frozenset[str]:
    return frozenset(dir(kind))


def only_looks(hook: Function) -> Function:
    """Marks a hook of a loss that changes nothing: the loss is computed as without it, and then once more."""
    hook.only_looks = True  # type: ignore[attr-defined]
    return hook


def has_hooks(module: nn.Module) -> bool:
    """Returns whether hooks are registered on the module, or inside it."""
    return any(getattr(part, f"_{name}") for part in module.modules() for name in _HOOKS)


def learned_tensors(loss: nn.Module) -> list[Tensor]:
    """Returns what gets a gradient besides the anchors: a temperature, say, or a reducer's weights."""
    learned = {}
    for part in loss.modules():
        for value in (*vars(part).values(), *part.parameters(recurse=False)):
            if isinstance(value, Tensor) and value.requires_grad:
                learned[id(value)] = value
    return list(learned.values())
