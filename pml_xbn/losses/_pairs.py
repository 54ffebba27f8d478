"""Index tuples between a batch of anchors and the memory, never of an anchor with its own stored copy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from pytorch_metric_learning import miners
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from ._choice import all_pairs
from ._cosines import Distances, is_of_cosines
from ._indices import IndicesTuple, drop_own_rows, mapped
from ._twins import is_as_built, twin_of

Miner = Callable[[Tensor, Tensor, Tensor, Tensor], IndicesTuple]


def chosen_pairs(
    miner: Any, distances: Distances, labels: Tensor, ref_labels: Tensor, own_rows: Tensor | None
) -> IndicesTuple:
    """The miner's choice, or all pairs, none of them an anchor's with its own copy.

    A miner that picks the easiest positive would else always pick that copy, at distance zero. So one of
    PML's, or a subclass, has a twin called which lists other pairs; a miner of the user's own chooses as
    it likes, and loses such pairs afterwards.
    """
    if miner is None:
        return all_pairs(labels, ref_labels, own_rows).lists()
    cls: Any = type(miner)
    rows, chooser = distances.row_tensor, miner
    if isinstance(miner, miners.BaseMiner):
        is_read = _is_pmls(cls) and is_as_built(miner) and is_of_cosines(miner.distance)
        ours = {"distance": distances.reading(miner.distance, rows)} if is_read else {}
        chooser = twin_of(miner, *_listing_other_pairs(cls), **ours)
    # MultiSimilarityMiner takes every pair that is not listed as positive for a negative, and the other
    # way round, so for it a pair that is neither has to be listed as both.
    as_both = isinstance(miner, miners.MultiSimilarityMiner)
    token = _OWN_PAIRS.set(None if own_rows is None else (own_rows, as_both))
    try:
        indices: IndicesTuple = chooser(distances.anchors, labels, rows, ref_labels)
    finally:
        _OWN_PAIRS.reset(token)
    if isinstance(miner, miners.EmbeddingsAlreadyPackagedAsTriplets):  # which numbers the batch
        indices = tuple(x.to(labels.device) for x in indices)
        indices = tuple(x[:0] for x in indices) if own_rows is None else mapped(indices, own_rows)
    if own_rows is None:
        return indices
    indices = drop_own_rows(indices, own_rows)
    if _is_pmls(cls):
        miner.output_assertion(indices)  # counts them again
    return indices


def _is_pmls(cls: type) -> bool:
    return cls.__module__.startswith("pytorch_metric_learning.")


# -- PML's miners with other lists ------------------------------------------------------------------------

# Of every anchor its own row, and whether the pair is listed as match and difference, or as neither. A
# thread has its own.
_OWN_PAIRS: ContextVar[tuple[Tensor, bool] | None] = ContextVar("_OWN_PAIRS", default=None)


def _matches_and_diffs(labels: Tensor, ref_labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """PML's function, which can leave out the diagonal of a batch compared with itself alone."""
    matches, diffs = lmu.get_matches_and_diffs(labels, ref_labels)
    own_pairs = _OWN_PAIRS.get()
    if own_pairs is not None and ref_labels is not None:
        _list_own_pairs(matches, diffs, *own_pairs)
    return matches, diffs


def _list_own_pairs(matches: Tensor, diffs: Tensor, own_rows: Tensor, as_both: bool) -> None:
    own_pairs = torch.arange(len(own_rows), device=own_rows.device), own_rows
    matches[own_pairs] = as_both
    diffs[own_pairs] = as_both


def _with_globals(functions: Mapping[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """The same functions, which find these names where they look for globals."""
    copies = {}
    for name, function in functions.items():
        code, defaults, closure = function.__code__, function.__defaults__, function.__closure__
        copies[name] = FunctionType(code, names, function.__name__, defaults, closure)
        copies[name].__kwdefaults__ = function.__kwdefaults__
    return copies


def _functions_in(namespace: Any, names: dict[str, Any]) -> dict[str, FunctionType]:
    return {
        name: value
        for name, value in vars(namespace).items()
        if isinstance(value, FunctionType) and value.__globals__ is names
    }


# PML's miners all list their pairs through the functions of one module. This is that module again.
_LISTS = SimpleNamespace(**vars(lmu))
vars(_LISTS).update(_with_globals(_functions_in(lmu, vars(lmu)), vars(_LISTS)))
_LISTS.get_matches_and_diffs = _matches_and_diffs


@cache
def _listing_other_pairs(cls: Any) -> tuple[type, ...]:
    """What a twin of this miner has to be of: behind its classes, copies of PML's with our lists."""
    copies = []
    for base in cls.__mro__:
        module = vars(sys.modules[base.__module__])
        if _is_pmls(base) and module.get("lmu") is lmu:
            functions = _with_globals(_functions_in(base, module), {**module, "lmu": _LISTS})
            copies.append(type(base.__name__, (base,), functions))
    return tuple(copies) if issubclass(copies[0] if copies else object, cls) else (cls, *copies)
