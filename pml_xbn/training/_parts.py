"""Batches as models take and return them: tensors, in dictionaries, lists, tuples and dataclasses."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn


def tensors_of(*values: Any) -> Iterator[Tensor]:
    """Returns all tensors of a batch."""
    found: list[Tensor] = []
    rebuilt(lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None, values)
    return iter(found)


def batch_size(values: Any) -> int:
    """Returns the number of images: the length of all tensors but those that have one element for all."""
    sizes = {len(tensor) for tensor in tensors_of(values) if tensor.ndim > 0}
    if len(sizes) > 1:
        sizes -= {1}
    if len(sizes) != 1:
        found = f"tensors of {sorted(sizes)} rows" if sizes else "no tensor"
        raise ValueError(
            f"the model is given {found}: pass tensors of one batch, one row an image, or of one element "
            "that belongs to all images"
        )
    return sizes.pop()


def own_part(batch: Any, rows: slice, size: int) -> Any:
    """Returns some rows of a batch of so many images, with containers and tensors that nobody else has.

    Tensors of one element, and what is no tensor, belong to the whole batch.
    """
    copies: dict[int, Tensor] = {}  # a tensor that is there twice stays one

    def part(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in copies:
            has_rows = leaf.ndim > 0 and len(leaf) == size
            copies[id(leaf)] = (leaf[rows] if has_rows else leaf).clone()
        return copies[id(leaf)]

    return rebuilt(part, batch)


def joined(parts: list[Any], sizes: list[int]) -> Any:
    """Returns what the model returned of all parts, of so many images each, as it would of the whole.

    Raises:
        ValueError: tensors that do not have a row an image, and differ.
        TypeError: anything else that differs between the parts.
    """
    if len(parts) == 1:
        return parts[0]

    def join(*of_parts: Any) -> Any:
        first = of_parts[0]
        if not all(isinstance(one, Tensor) for one in of_parts):
            if all(_is_equal(first, one) for one in of_parts):
                return first
            raise TypeError(
                f"the model returns a {type(first).__name__}, and another one of the next part: pass one "
                "that returns embeddings, (b, d), or dictionaries, lists or tuples of such tensors"
            )
        if all(one.ndim > 0 and len(one) == size for one, size in zip(of_parts, sizes, strict=True)):
            return torch.cat(of_parts)
        has_gradient = any(one.requires_grad for one in of_parts)
        if not has_gradient and all(torch.equal(first, one) for one in of_parts):
            return first
        raise ValueError(
            f"the model returns a tensor of shape {tuple(first.shape)} of {sizes[0]} images: pass one that "
            "returns embeddings, (b, d), or other tensors with one row an image"
        )

    return rebuilt(join, *parts)


def rebuilt(replace: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Returns a copy of a batch, of which every container is new and every leaf is replaced.

    Args:
        replace: takes a leaf, and the leaves of the others at its place.
        first: the batch.
        others: batches of the same structure.

    Raises:
        TypeError: another structure.
    """
    names = _names(first)
    if names is None:
        return replace(first, *others)
    for other in others:
        if type(other) is not type(first) or _names(other) != names:
            raise TypeError(
                f"the model returns a {type(first).__name__} of {names} of one part, and something else of "
                "the next: pass one that always returns the same"
            )
    values = [rebuilt(replace, *(_get(one, name) for one in (first, *others))) for name in names]
    if isinstance(first, (list, tuple)):
        return _sequence_like(first, values)
    is_copied = type(first) is not dict and isinstance(first, (dict, UserDict))
    if isinstance(first, Mapping) and not is_copied:  # others may not be written to
        return dict(zip(names, values, strict=True))
    new = copy.copy(first)
    for name, value in zip(names, values, strict=True):
        if isinstance(first, Mapping):
            new[name] = value
        else:
            object.__setattr__(new, name, value)  # of a frozen dataclass too
    return new


def _names(value: Any) -> list[Any] | None:
    """Returns what the contents of a container are found by; None of a leaf."""
    if isinstance(value, Mapping):
        return list(value)
    if isinstance(value, (list, tuple)):
        return list(range(len(value)))
    if is_dataclass(value) and not isinstance(value, (type, nn.Module)):
        return [field.name for field in fields(value)]
    return None


def _get(container: Any, name: Any) -> Any:
    return container[name] if isinstance(container, (Mapping, list, tuple)) else getattr(container, name)


def _sequence_like(sequence: Any, values: list[Any]) -> Any:
    if hasattr(sequence, "_make"):  # a tuple with names
        return sequence._make(values)
    if type(sequence) is list or isinstance(sequence, tuple):
        return type(sequence)(values)
    new = copy.copy(sequence)
    new[:] = values
    return new


def _is_equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    return type(first) is type(second) and isinstance(first, (bool, int, float, str)) and first == second
