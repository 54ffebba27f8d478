"""Acts after a step of any optimizer, to send a signal or to keep what a kill would leave on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


@contextmanager
def after_each_step(act: Callable[[int], object]) -> Iterator[None]:
    """Calls ``act`` with the number of the step, counted from 1."""
    steps = count(1)
    handle = register_optimizer_step_post_hook(lambda *_: act(next(steps)) and None)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def at_step(number: int, act: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """Calls ``act`` after the step with this number."""
    with after_each_step(lambda step: act(*arguments) if step == number else None):
        yield
