"""Whether anybody has changed a module of PML's, or looks into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    if any(getattr(torch_module, f"_global_{name}") for name in _HOOKS):
        return False
    for part in module.modules():
        attributes = vars(part)
        if attributes.get("collect_stats") and not allow_stats:
            return False
        kind: Any = type(part)
        if not _names_of_class(kind).isdisjoint(attributes):
            return False
    return all(hasattr(hook, "only_looks") for hook in _hooks(module))


@cache
def _names_of_class(kind: type) -> frozenset[str]:
    return frozenset(dir(kind))


def only_looks(hook: Function) -> Function:
    """Marks a hook of a loss that changes nothing: the loss is computed as without it, and then once more."""
    hook.only_looks = True  # type: ignore[attr-defined]
    return hook


def is_watched(module: nn.Module) -> bool:
    """Returns whether hooks that only look are registered on the module, or inside it."""
    return any(hasattr(hook, "only_looks") for hook in _hooks(module))


def _hooks(module: nn.Module) -> Iterator[Any]:
    for part in module.modules():
        for name in _HOOKS:
            yield from getattr(part, f"_{name}").values()


def learned_tensors(loss: nn.Module) -> list[Tensor]:
    """Returns what gets a gradient besides the anchors: a temperature, say, or a reducer's weights."""
    attributes = [x for module in loss.modules() for x in vars(module).values() if isinstance(x, Tensor)]
    return list({id(x): x for x in (*loss.parameters(), *attributes) if x.requires_grad}.values())
