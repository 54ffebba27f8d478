"""What modules hold, and how it is given back to them.

* ``attributes_of`` and ``give_back_attributes``: all of it, when a step is undone. An adapter replaces its
  tensors, so that references are enough. Another hook may write into its own: of those `MemoryHooks.snapshot`
  copies the state, and what ``buffers_outside_the_state`` yields.
* ``tensors_of`` and ``give_back_tensors_unless``: an adapter's tensors, on the device, if the batch turns out
  not to be stored.
* ``tensors_of`` and ``settle_``: the other way round. At the end of a step on a GPU, or in a graph, what an
  adapter holds now is written into the tensors that it held before.
* ``parts_of`` and ``replace_tensors``: a compiled step lets modules hold the tensors of a graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._tracing import is_tracing
from ..adapters.moments import Moments

# Where a module keeps what is no attribute of Python's.
_REGISTRIES = ("_buffers", "_parameters", "_modules")
# Modules, and copies of their attributes and of these.
Attributes = list[tuple[nn.Module, dict[str, Any], dict[str, dict[str, Any]]]]


def attributes_of(module: nn.Module) -> Attributes:
    """Returns what a module and its parts hold. Tensors and parts are not copied."""
    return [
        (part, vars(part).copy(), {name: vars(part)[name].copy() for name in _REGISTRIES})
        for part in module.modules()
    ]


def give_back_attributes(held: Attributes) -> None:
    """Gives modules back what they held, and takes away all else."""
    for part, attributes, registries in held:
        for name in vars(part).keys() - attributes.keys():
            del part.__dict__[name]
        part.__dict__.update(attributes)
        for name, values in registries.items():
            registry = vars(part)[name]
            registry.clear()
            registry.update(values)
        part._non_persistent_buffers_set.intersection_update(part._buffers)


def differ_in_numbers_alone(held: Attributes) -> bool:
    """Returns whether modules hold what they held, but for tensors that were replaced by others like them."""
    for part, attributes, registries in held:
        old, new = dict(attributes), vars(part).copy()
        for name, values in registries.items():
            old.update(values)
            new.update(vars(part)[name])
        if old.keys() != new.keys():
            return False
        if not all(new[name] is value or _are_of_one_shape(new[name], value) for name, value in old.items()):
            return False
    return True


Held = list[tuple[nn.Module, str, "Tensor | Moments"]]


def tensors_of(module: nn.Module) -> Held:
    """Returns the tensors that a module keeps in attributes and buffers, with their names."""
    found: Held = []
    for part in module.modules():
        for names in (vars(part), part._buffers, part._parameters):
            found += [
                (part, name, value) for name, value in names.items() if isinstance(value, (Tensor, Moments))
            ]
    return found


def parts_of(held: Held) -> list[Tensor]:
    """Returns the tensors of what modules hold, in order."""
    return [part for _, _, value in held for part in _parts(value)]


def replace_tensors(held: Held, new: Iterator[Tensor]) -> None:
    """Gives modules other tensors, in order, in place of those that they hold."""
    for part, name, old in held:
        _put(part, name, next(new) if isinstance(old, Tensor) else Moments(next(new), next(new)))


def give_back_tensors_unless(adapts: Tensor, held: Held) -> None:
    """Gives an adapter back the tensors that it held unless a batch is adapted to, on the device."""
    for part, name, old in held:
        new: Any = getattr(part, name, None)
        if new is not old and _are_of_one_shape(new, old):
            pairs = zip(_parts(new), _parts(old), strict=True)
            chosen = [torch.where(adapts, x, y.to(x)) for x, y in pairs]  # it may have come from the host
            value = chosen[0] if isinstance(old, Tensor) else Moments(*chosen)
            if isinstance(old, nn.Parameter) and not is_tracing():
                value = nn.Parameter(chosen[0], old.requires_grad)
            _put(part, name, value)


def settle_(held: Held) -> None:
    """Writes what adapters have replaced into the tensors that they held, so that these stay where they are.

    A CUDA graph finds them there.
    """
    for part, name, old in held:
        new: Any = getattr(part, name, None)
        if new is not old and _are_of_one_shape(new, old) and _are_of_one_kind(new, old):
            for x, y in zip(_parts(new), _parts(old), strict=True):
                y.copy_(x)
            _put(part, name, old)


def _put(part: nn.Module, name: str, value: Tensor | Moments) -> None:
    """Gives a part another tensor where it has one of this name."""
    places: tuple[dict[str, Any], ...] = (part._parameters, part._buffers, vars(part))
    next(place for place in places if name in place)[name] = value


def _parts(value: Tensor | Moments) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


def _are_of_one_shape(one: Any, other: Any) -> bool:
    """Returns whether both are tensors, or moments, of the same shape."""
    are_alike = any(isinstance(one, kind) and isinstance(other, kind) for kind in (Tensor, Moments))
    return are_alike and [x.shape for x in _parts(one)] == [x.shape for x in _parts(other)]


def _are_of_one_kind(one: Tensor | Moments, other: Tensor | Moments) -> bool:
    pairs = zip(_parts(one), _parts(other), strict=True)
    return all((x.dtype, x.device) == (y.dtype, y.device) for x, y in pairs)


def buffers_outside_the_state(hook: nn.Module) -> Iterator[Tensor]:
    """Yields the buffers with ``persistent=False``, which a state does not hold."""
    for part in hook.modules():
        for name in part._non_persistent_buffers_set:
            values = part._buffers[name]
            if values is not None and not is_lazy(values):
                yield values
