"""States of other memories: PML's, and those that were built otherwise."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from .._dtypes import at_least_float32
from ._queue import Contents, Queue, state_of
from ._rows import Rows


def prepare_state(
    state: dict[str, Any], prefix: str, memory: nn.Module, queue: Queue, *, is_whole: bool
) -> None:
    """Checks a state before it is loaded, and turns one of PML's ``CrossBatchMemory`` into one of ours.

    Args:
        prefix: of the memory's own entries.
        is_whole: entries may neither be missing nor be of something else.
    """
    _from_pml(state, prefix, memory, queue)
    stored = state.get(prefix + "queue.rows")
    if stored is not None:
        _check_same_size(stored, queue.contents.rows)
    # Of a state with no entry of the memory's, such as a backbone's weights, torch says what is missing.
    is_strict = is_whole and any(key.startswith(prefix) for key in state)
    _check_state(state, prefix, memory.state_dict(prefix=prefix, keep_vars=True), strict=is_strict)


def _from_pml(state: dict[str, Any], prefix: str, memory: nn.Module, queue: Queue) -> None:
    """Turns the entries of PML's ``CrossBatchMemory`` in a state into those of a memory with a queue.

    Args:
        state: of a module that holds the memory, in which the entries are replaced.
        prefix: of the memory's own entries.
    """
    rows = state.pop(prefix + "embedding_memory", None)
    labels = state.pop(prefix + "label_memory", None)
    if rows is None or labels is None:
        return
    _check_same_size(rows, queue.contents.rows)
    num_rows = _num_filled(rows)
    with torch.inference_mode(False):
        values = at_least_float32(rows.detach()[:num_rows].clone())
        stored, labels = Rows.of(values, len(rows), queue.dtype), labels.to(torch.int64, copy=True)
    contents = Contents(stored, labels, position=num_rows % len(rows))
    state.update({f"{prefix}queue.{name}": value for name, value in state_of(contents).items()})
    # What PML's class has no counterpart for starts afresh.
    for key, value in memory.state_dict(prefix=prefix).items():
        if not key.startswith((prefix + "loss.", prefix + "miner.")):
            state.setdefault(key, value)


def _check_same_size(stored: Tensor, rows: Rows) -> None:
    """Raises a ValueError if a checkpoint's memory has another size than this one."""
    own = rows.num_places, rows.stored.shape[1]
    for axis, name in enumerate(("memory_size", "embedding_size")):
        if stored.ndim != 2 or stored.shape[axis] != own[axis]:
            raise ValueError(
                f"the checkpoint's memory has shape {tuple(stored.shape)}, this one {own}: "
                f"build it with {name}={stored.shape[axis]}, not {own[axis]}"
            )


def _check_state(state: dict[str, Any], prefix: str, own: dict[str, Any], *, strict: bool) -> None:
    """Raises an error, before anything is loaded, if a state is not that of a memory built like this one.

    Args:
        own: this memory's state, of the same prefix.

    Raises:
        ValueError: an entry has another shape.
        RuntimeError: entries are missing or unexpected, and ``strict``.
    """
    for key in own.keys() & state.keys():
        mine, saved = own[key], state[key]
        if isinstance(mine, Tensor) and isinstance(saved, Tensor) and mine.shape != saved.shape:
            raise ValueError(
                f"{key} has shape {tuple(saved.shape)} in the checkpoint and {tuple(mine.shape)} here: "
                "build the memory as it was built then, with the same class, adapters and sizes"
            )
    of_memory = {key for key in state if key.startswith(prefix)}
    if strict and own.keys() != of_memory:
        missing, unexpected = sorted(own.keys() - of_memory), sorted(of_memory - own.keys())
        raise RuntimeError(
            f"the checkpoint lacks {missing} and holds {unexpected} besides: build the memory as it was "
            "built then, or load this part by the memory's own load_state_dict, with strict=False"
        )


def _num_filled(rows: Tensor) -> int:
    """Returns how many rows are filled, which PML's ``CrossBatchMemory`` leaves out of its checkpoint.

    Rows are filled up to the last one that is not zero. In a full memory the oldest row cannot be told;
    it is taken to be the first.
    """
    occupied = (rows != 0).any(dim=1).nonzero()
    num_rows = int(occupied[-1]) + 1 if len(occupied) else 0
    warnings.warn(
        f"the checkpoint holds no queue position, as those of PML's CrossBatchMemory: took {num_rows} of "
        f"{len(rows)} rows to be filled and row {num_rows % len(rows)} to be the next one written, and "
        "count calls from 0, so warmup and delay start over",
        stacklevel=2,
    )
    return num_rows
