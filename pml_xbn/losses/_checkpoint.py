"""States of other memories than the present one: PML's, those of version 0.1.0, and those without samples."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from .._dtypes import at_least_float32, widest
from ..adapters._filtered_moments import FilteredMoments
from ..adapters._rows import Rows
from ._queue import Contents, Queue, state_of


def to_present_form(state: dict[str, Any], prefix: str, memory: nn.Module, queue: Queue) -> None:
    """Turns the entries of a memory that are of an older form into those of the present one.

    Args:
        state: of a module that holds the memory, in which the entries are replaced.
        prefix: of the memory's own entries.
    """
    _add_samples(state, prefix + "queue.")
    rows = state.pop(prefix + "embedding_memory", None)
    labels = state.pop(prefix + "label_memory", None)
    if rows is None or labels is None:
        return
    check_same_size(rows, queue.contents.rows.stored)
    written_by_pml = prefix + "_extra_state" not in state
    numbers = state.pop(prefix + "_extra_state", None) or _inferred_numbers(rows)
    position, is_full = numbers["queue_idx"], numbers["has_been_filled"]
    boundary = len(rows) if is_full and position == 0 else position
    with torch.inference_mode(False):
        values = at_least_float32(rows.detach().clone())
        stored = Rows.of(values, len(rows), boundary, queue.dtype).first(len(rows) if is_full else position)
        contents = Contents(stored, labels.to(torch.int64, copy=True), None, numbers["num_calls"])
    state.update(
        {
            f"{prefix}queue.{name}": value
            for name, value in state_of(contents, has_matrices=queue.has_matrices).items()
        }
    )
    for name, module in memory.named_modules(prefix=prefix.removesuffix(".")):
        key = f"{name}._extra_state"
        old = state.get(key)
        if isinstance(old, dict) and "running" in old:
            del state[key]
            if isinstance(module, FilteredMoments):
                state[key] = _estimate(old, module)
    if written_by_pml:  # what its class has no counterpart for starts afresh
        for key, value in memory.state_dict(prefix=prefix).items():
            if not key.startswith((prefix + "loss.", prefix + "miner.")):
                state.setdefault(key, value)


def _add_samples(state: dict[str, Any], prefix: str) -> None:
    """Says of a queue whose state is of version 2 that its rows are of no samples."""
    labels, numbers = state.get(prefix + "labels"), state.get(prefix + "numbers")
    if labels is not None and numbers is not None and prefix + "ids" not in state:
        state[prefix + "ids"] = torch.full_like(labels, -1)
        state[prefix + "numbers"] = torch.cat([numbers, numbers.new_zeros(1)])


def _estimate(old: dict[str, Any], adapter: FilteredMoments) -> Tensor:
    """The present form of what an adapter of version 0.1.0 had estimated."""
    fresh = adapter.get_extra_state()
    own = [old[name] for name in ("variance", "gain") if name in old]
    num_batches = old.get("num_batches", int(old["mean"] is not None))
    moments = [fresh.new_zeros(2 * len(adapter.estimated.mean))]
    if old["mean"] is not None:
        moments = [widest(old["mean"]), widest(old["std"])]
    return torch.cat([fresh.new_tensor([num_batches, *own]), *(x.to(fresh) for x in moments)])


def check_same_size(stored: Tensor, own: Tensor) -> None:
    """Raises a ValueError if a checkpoint's memory has another size than this one."""
    for axis, name in enumerate(("memory_size", "embedding_size")):
        if stored.ndim != 2 or stored.shape[axis] != own.shape[axis]:
            raise ValueError(
                f"the checkpoint's memory has shape {tuple(stored.shape)}, this one {tuple(own.shape)}: "
                f"build it with {name}={stored.shape[axis]}, not {own.shape[axis]}"
            )


def check_state(state: dict[str, Any], prefix: str, own: dict[str, Any], *, strict: bool) -> None:
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


def _inferred_numbers(rows: Tensor) -> dict[str, Any]:
    """Of the queue, what PML's ``CrossBatchMemory`` leaves out of its checkpoint.

    Rows are filled up to the last one that is not zero. In a full memory the oldest row cannot be told;
    it is taken to be the first.
    """
    occupied = (rows != 0).any(dim=1).nonzero()
    num_rows = int(occupied[-1]) + 1 if len(occupied) else 0
    numbers = {
        "queue_idx": num_rows % len(rows),
        "has_been_filled": num_rows == len(rows),
        "num_calls": 0,
    }
    warnings.warn(
        f"the checkpoint holds no queue position, as those of PML's CrossBatchMemory: took {num_rows} of "
        f"{len(rows)} rows to be filled and row {numbers['queue_idx']} to be the next one written, and "
        "count calls from 0, so warmup and delay start over",
        stacklevel=2,
    )
    return numbers
