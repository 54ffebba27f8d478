"""Sees whether ranks may run out of batches while others go on: ``DistributedDataParallel.join()``."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakSet


class UnevenInputs:
    """Refuses steps within a block of ``join()``.

    In such a block a rank that has run out of batches makes the calls that ``DistributedDataParallel`` on
    other ranks waits for, and none of those that a loss waits for. PyTorch tells only the models of a block
    that it has begun, and does not tell them that it is over. So this class looks for the models once, at the
    first step, and looks for the block once whenever a model has been told of another one.
    """

    def __init__(self) -> None:
        self._models: WeakSet[Any] | None = None
        self._over: WeakKeyDictionary[Any, object] = (
            WeakKeyDictionary()
        )  # what models were told of old blocks

    def check(self) -> None:
        """Raises a ``ValueError`` within such a block, unless it ends on all ranks at once."""
        from torch.distributed.algorithms.join import Join, Joinable

        if self._models is None:
            self._models = WeakSet(_alive(Joinable))
        for model in self._models:
            told = model._join_config
            if not told.enable or told.throw_on_early_termination or told is self._over.get(model):
                continue
            if any(model in block._joinables for block in _alive(Join)):
                raise ValueError(
                    "this is a step within join() of DistributedDataParallel, where ranks that run out of "
                    "batches leave the loss of the others waiting: call model and loss equally often on all "
                    "ranks, with an empty batch where one has run out, or pass "
                    "join(throw_on_early_termination=True), which ends the block on all ranks together"
                )
            self._over[model] = told


def _alive(kind: type) -> Iterator[Any]:
    """Returns the objects of this class and of those that inherit from it."""
    return (x for x in gc.get_objects() if kind in type(x).__mro__)
