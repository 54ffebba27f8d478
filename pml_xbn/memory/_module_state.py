"""What hooks that are modules hold, and how it is given back to them when a step is undone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..adapters.moments import Moments

# Modules, and copies of their attributes and of their buffers.
Attributes = list[tuple[nn.Module, dict[str, Any], dict[str, "Tensor | None"]]]


def attributes_of(module: nn.Module) -> Attributes:
    """Returns what a module and its parts hold in attributes and buffers, which are not copied."""
    return [(part, vars(part).copy(), part._buffers.copy()) for part in module.modules()]


def give_back_attributes(held: Attributes) -> None:
    """Gives modules back the attributes and buffers that they held, and takes away others."""
    for part, attributes, buffers in held:
        for made in (part._buffers.keys() - buffers.keys(), vars(part).keys() - attributes.keys()):
            for name in made:
                delattr(part, name)
        part.__dict__.update(attributes)
        part._buffers.update(buffers)  # one that was None is no part of the state


def differ_in_numbers_alone(held: Attributes) -> bool:
    """Returns whether modules hold what they held, but for tensors that were replaced by others like them."""
    for part, attributes, buffers in held:
        old, new = attributes | buffers, vars(part) | part._buffers
        if old.keys() != new.keys():
            return False
        for name, value in old.items():
            other = new[name]
            if other is value:
                continue
            is_kept = isinstance(value, Tensor | Moments) and type(other) is type(value)
            if not (is_kept and _have_shape(other, value)):
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
        value = next(new) if isinstance(old, Tensor) else Moments(next(new), next(new))
        places: tuple[dict[str, Any], ...] = (part._parameters, part._buffers, vars(part))
        next(place for place in places if name in place)[name] = value


def give_back_tensors_unless(adapts: Tensor, held: Held) -> None:
    """Gives an adapter back the tensors that it held unless a batch is adapted to, on the device."""
    for part, name, old in held:
        new = getattr(part, name)
        if new is not old and _have_shape(new, old):
            pairs = zip(_parts(new), _parts(old), strict=True)
            chosen = [torch.where(adapts, x, y.to(x)) for x, y in pairs]  # it may have come from the host
            setattr(part, name, chosen[0] if isinstance(old, Tensor) else Moments(*chosen))


def settle_(held: Held) -> None:
    """Writes what adapters have replaced into the tensors that they held, so that these stay where they are.

    A CUDA graph finds them there.
    """
    for part, name, old in held:
        new = getattr(part, name)
        if new is not old and _are_alike(new, old):
            for x, y in zip(_parts(new), _parts(old), strict=True):
                y.copy_(x)
            setattr(part, name, old)


def _parts(value: Tensor | Moments) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


def _have_shape(one: Tensor | Moments, other: Tensor | Moments) -> bool:
    return [x.shape for x in _parts(one)] == [x.shape for x in _parts(other)]


def _are_alike(one: Tensor | Moments, other: Tensor | Moments) -> bool:
    pairs = zip(_parts(one), _parts(other), strict=True)
    return all((x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device) for x, y in pairs)


def buffers_outside_the_state(hook: nn.Module) -> Iterator[Tensor]:
    """Yields the buffers with ``persistent=False``, which a state does not hold."""
    for part in hook.modules():
        for name in part._non_persistent_buffers_set:
            values = part._buffers[name]
            if values is not None and not is_lazy(values):
                yield values
