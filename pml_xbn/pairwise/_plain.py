"""Whether anybody has changed a module of PML's, or looks into it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def is_plain(module: nn.Module, *, allow_stats: bool = False) -> bool:
    """Returns whether the module and all inside it work as their classes say, and nobody looks at it.

    That is: no method was replaced, no hook is registered, and no statistics are collected.
    """
    if any(getattr(torch_module, f"_global_{name}") for name in _HOOKS):
        return False
    return all(
        not any(hasattr(type(part), name) for name in vars(part))
        and not any(getattr(part, f"_{name}") for name in _HOOKS)
        and (allow_stats or not getattr(part, "collect_stats", False))
        for part in module.modules()
    )


def learned_tensors(loss: nn.Module) -> list[Tensor]:
    """Returns what gets a gradient besides the anchors: a temperature, say, or a reducer's weights."""
    attributes = [x for module in loss.modules() for x in vars(module).values() if isinstance(x, Tensor)]
    distinct = {id(x): x for x in (*loss.parameters(), *attributes)}
    return [x for x in distinct.values() if x.requires_grad]
