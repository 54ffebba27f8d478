"""Checks of arguments; every error names the argument, its value and the remedy."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from difflib import get_close_matches

import torch
from torch import Tensor
from torch.autograd import forward_ad

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def check_keywords(cls: type, keywords: Iterable[str]) -> None:
    """Refuses keywords that no ``__init__`` of a class and its bases names, with the nearest that one does.

    Example:
        >>> from pml_xbn import XBNWrapper
        >>> check_keywords(XBNWrapper, ["memory_sizee"])
        Traceback (most recent call last):
        TypeError: XBNWrapper has no keyword 'memory_sizee': did you mean 'memory_size'?
    """
    initializers = [vars(base)["__init__"] for base in cls.__mro__[:-1] if "__init__" in vars(base)]
    parameters = [x for init in initializers for x in list(inspect.signature(init).parameters.values())[1:]]
    known = {x.name for x in parameters if x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY)}
    for name in keywords:
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            names = ", ".join(sorted(known))
            remedy = f"did you mean {nearest[0]!r}?" if nearest else f"pass some of {names}"
            raise TypeError(f"{cls.__name__} has no keyword {name!r}: {remedy}")


def check_integer(name: str, value: int, at_least: int) -> None:
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_integer or value < at_least:
        raise ValueError(f"{name}={value!r}: pass an integer, {at_least} or more")


def check_non_negative(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}={value!r}: pass a finite number, 0 or more")


def check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}={value!r}: pass a finite number above 0")


def check_one_of(name: str, value: object, choices: Iterable[object]) -> None:
    if value not in (known := tuple(choices)):
        raise ValueError(f"{name}={value!r}: pass one of {', '.join(map(str, known))}")


def plain(values: Tensor) -> Tensor:
    """Returns the tensor without a subclass that wraps functions, which would spread to whatever meets it."""
    is_wrapper = type(values).__torch_dispatch__ is not Tensor.__torch_dispatch__  # it has no data itself
    return values if type(values) is Tensor or is_wrapper else values.as_subclass(Tensor)


def check_dense(name: str, values: Tensor, wanted: str = "a tensor") -> None:
    """Refuses what is no tensor, and tensors whose numbers do not lie side by side on one device."""
    if not isinstance(values, torch.Tensor):
        raise TypeError(f"{name} is a {type(values).__name__}: pass {wanted}")
    if hasattr(values, "to_local"):  # without an import of what old releases lack
        raise ValueError(f"{name} is a DTensor: pass the rows of this rank, as from .to_local()")
    if values.is_nested:
        raise ValueError(
            f"{name} is a nested tensor: pass a dense one, as from torch.nested.to_padded_tensor"
        )
    if values.layout != torch.strided:
        raise ValueError(f"{name} has layout {values.layout}: pass a dense tensor, as from .to_dense()")


def check_not_meta(name: str, values: Tensor) -> None:
    """Refuses a tensor on the device "meta": what is moved there to meet it is lost."""
    if values.is_meta:
        raise ValueError(f'{name} is on the device "meta", which holds no numbers: pass it from another')


def check_not_transformed(name: str, values: Tensor) -> None:
    """Refuses a tensor that torch.func or forward-mode automatic differentiation follows.

    A memory computes its gradient along with the loss, which neither can see: what they would return may be
    wrong without an error.
    """
    is_within_func = torch._C._functorch.peek_interpreter_stack() is not None
    # A tangent is looked for where there may be one alone, as that costs an operation.
    is_dual = forward_ad._current_level >= 0 and forward_ad.unpack_dual(values).tangent is not None
    if is_within_func or is_dual:
        what = "a function that torch.func transforms" if is_within_func else "forward-mode differentiation"
        raise RuntimeError(
            f"{name} in {what}: use loss.backward() or torch.autograd.grad, or compute the loss with PML's "
            "code on embedding_memory"
        )


def check_rows(name: str, rows: Tensor, like: Tensor | None = None, width: int | None = None) -> None:
    """Refuses what is no ``(n, d)`` floating tensor, of the shape of ``like``, or of this width."""
    check_dense(name, rows)
    if rows.ndim != 2:
        raise ValueError(f"{name} has shape {tuple(rows.shape)}: pass one row per embedding, (n, d)")
    if not rows.is_floating_point():
        raise ValueError(f"{name} has dtype {rows.dtype}: pass a floating dtype")
    if like is not None and rows.shape != like.shape:
        raise ValueError(f"{name} has shape {tuple(rows.shape)}: pass {tuple(like.shape)}, as the others")
    if width not in (None, rows.shape[1]):
        raise ValueError(f"{name} has shape {tuple(rows.shape)}: pass (n, {width}), the embedding_size")


def check_integers(name: str, values: Tensor, size: int, wanted: str = "one value per row") -> None:
    """Refuses what is no ``(size,)`` integer tensor."""
    check_dense(name, values)
    if values.shape != (size,):
        raise ValueError(f"{name} has shape {tuple(values.shape)}: pass {wanted}, shape ({size},)")
    if values.dtype not in INTEGERS:
        raise ValueError(f"{name} has dtype {values.dtype}: pass integers, such as torch.int64")
    check_not_meta(name, values)


def check_mask(name: str, mask: Tensor, size: int) -> None:
    """Refuses what is no ``(size,)`` bool tensor."""
    check_dense(name, mask, "a bool tensor")
    if mask.dtype != torch.bool:
        raise ValueError(f"{name} has dtype {mask.dtype}: pass torch.bool, as from mask.bool()")
    if mask.shape != (size,):
        raise ValueError(f"{name} has shape {tuple(mask.shape)}: pass one value per row, shape ({size},)")
    check_not_meta(name, mask)


def check_indices(user_pairs: tuple[Tensor, ...], size: int) -> None:
    """Refuses what are no pairs or triplets within a batch of this size."""
    wanted = "3 (anchors, positives, negatives) or 4 (anchors, positives, anchors, negatives)"
    is_stacked = isinstance(user_pairs, torch.Tensor) and user_pairs.ndim > 0
    if not (is_stacked or isinstance(user_pairs, (tuple, list))):
        raise TypeError(f"indices_tuple is a {type(user_pairs).__name__}: pass a tuple of tensors, {wanted}")
    if len(user_pairs) not in (3, 4):
        raise ValueError(f"indices_tuple has {len(user_pairs)} tensors: pass {wanted}")
    for indices in user_pairs:
        check_dense("indices_tuple", indices, f"a tuple of tensors, {wanted}")
        if indices.ndim != 1:
            shape = tuple(indices.shape)
            raise ValueError(f"indices_tuple has shape {shape}: pass one number per pair, shape (k,)")
    for number, indices in enumerate(user_pairs):
        anchors = user_pairs[2 if len(user_pairs) == 4 and number > 1 else 0]
        check_integers("indices_tuple", indices, len(anchors), "as many positives and negatives as anchors")
        outside = indices[(indices < 0) | (indices >= size)]
        if len(outside):
            raise ValueError(
                f"indices_tuple has numbers {outside.unique().tolist()} for a batch of {size}: pass numbers "
                f"from 0 to {size - 1}"
            )
