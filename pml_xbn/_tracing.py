"""What may be part of a graph of operations, and whether the host may read numbers of tensors.

Where it may not, a step computes with 0-d tensors. So ``torch.compile``, ``make_fx`` and a CUDA graph take it
whole, and a GPU does not wait.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# torch 2.1 has no name for the mode of make_fx, so there a step is not traced by it.
_PROXY = getattr(getattr(torch._C, "_TorchDispatchModeKey", None), "PROXY", None)

# torch 2.1 lacks it, whose Dynamo leaves a memory out of every graph.
_is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", lambda: False)


class _Thread(threading.local):
    """What this thread does, which others do not."""

    is_in_compiled_step = False
    is_in_eager_step = False


_thread = _Thread()


def is_compiling() -> bool:
    """Returns whether ``torch.compile`` makes a graph of the operations."""
    return _is_compiling() or _thread.is_in_compiled_step


def is_in_compiled_step() -> bool:
    """Returns whether ``torch.compile`` runs a step to see what it does to tensors."""
    return _thread.is_in_compiled_step


@contextmanager
def compiled_step() -> Iterator[None]:
    """Says that ``torch.compile`` runs the block to see what it does to tensors."""
    before, _thread.is_in_compiled_step = _thread.is_in_compiled_step, True
    try:
        with looks_again():
            yield
    finally:
        _thread.is_in_compiled_step = before


def is_part_of_graph() -> bool:
    """Returns whether ``torch.compile``, ``make_fx`` or a CUDA graph makes a graph of the operations."""
    if is_compiling():
        return True
    if _PROXY is not None and torch._C._get_dispatch_mode(_PROXY) is not None:
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_tracing() -> bool:
    """Returns whether a graph is made; within :func:`eager_step`, which has looked, False at once."""
    return not _thread.is_in_eager_step and is_part_of_graph()


class _Step:
    """Says whether the block is a step that is part of no graph."""

    def __init__(self, is_eager: bool) -> None:
        self._is_eager = is_eager

    def __enter__(self) -> None:
        self._before, _thread.is_in_eager_step = _thread.is_in_eager_step, self._is_eager

    def __exit__(self, *_: object) -> None:
        _thread.is_in_eager_step = self._before


def eager_step() -> _Step:
    """Returns a context in which nobody need look for a graph."""
    return _Step(is_eager=True)


def looks_again() -> _Step:
    """Returns a context in which a graph may be made within an eager step, as other people's code may do."""
    return _Step(is_eager=False)


def can_read(values: Tensor) -> bool:
    """Returns whether the host reads numbers of this tensor without waiting for a device."""
    return values.is_cpu and not is_tracing()


def number(value: Tensor) -> Any:
    """Returns the number of a 0-d tensor, as ``item`` does, which costs an operation more."""
    return value.tolist()


def number_if_readable(value: Tensor | float) -> Any:
    """Returns the number of a 0-d tensor, or the tensor itself where the host cannot read it."""
    return number(value) if isinstance(value, Tensor) and can_read(value) else value


def computed_once(values: Tensor) -> Tensor:
    """Returns the same numbers, which ``torch.compile`` then keeps, and does not compute where they are read.

    A factor of a row would be computed anew for every anchor, and a matrix that is read twice written out.
    """
    return values.as_strided(values.shape, values.stride()) if is_in_compiled_step() else values


def eager(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns the function as one that runs as it is written in a compiled module too."""

    # As a decorator, torch.compiler.disable would import Dynamo, which takes seconds, along with the package.
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        has_dynamo = "torch._dynamo" in sys.modules
        return (torch.compiler.disable(function) if has_dynamo else function)(*args, **kwargs)

    return call
