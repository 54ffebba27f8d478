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

    Raises:
        ValueError: an entry has another shape.
        RuntimeError: entries are missing or unexpected, and the state is to be whole.
    """
    rows, labels = (state.pop(prefix + name, None) for name in ("embedding_memory", "label_memory"))
    own_rows = queue.contents.rows
    own_size = own_rows.num_places, own_rows.stored.shape[1]
    for stored in (rows, state.get(prefix + "queue.rows")):
        for axis, name in enumerate(("memory_size", "embedding_size")):
            if stored is not None and (stored.ndim != 2 or stored.shape[axis] != own_size[axis]):
                raise ValueError(
                    f"the checkpoint's memory has shape {tuple(stored.shape)}, this one {own_size}: "
                    f"build it with {name}={stored.shape[axis]}, not {own_size[axis]}"
                )
    if rows is not None and labels is not None:
        _add_pmls(state, prefix, memory, queue, rows, labels)
    own = memory.state_dict(prefix=prefix, keep_vars=True)
    for key in own.keys() & state.keys():
        mine, saved = own[key], state[key]
        if isinstance(mine, Tensor) and isinstance(saved, Tensor) and mine.shape != saved.shape:
            raise ValueError(
                f"{key} has shape {tuple(saved.shape)} in the checkpoint and {tuple(mine.shape)} here: "
                "build the memory as it was built then, with the same class, adapters and sizes"
            )
    found = {key for key in state if key.startswith(prefix)}
    # Of a state with no entry of the memory's, such as a backbone's weights, torch says what is missing.
    if is_whole and found and own.keys() != found:
        missing, unexpected = sorted(own.keys() - found), sorted(found - own.keys())
        raise RuntimeError(
            f"the checkpoint lacks {missing} and holds {unexpected} besides: build the memory as it was "
            "built then, or load this part by the memory's own load_state_dict, with strict=False"
        )


def _add_pmls(
    state: dict[str, Any], prefix: str, memory: nn.Module, queue: Queue, rows: Tensor, labels: Tensor
) -> None:
    """Adds the entries of a memory with these rows ``(M, d)``, of which PML does not say how many are filled.

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
    with torch.inference_mode(False):
        values = at_least_float32(rows.detach()[:num_rows].clone())
        stored, labels = Rows.of(values, len(rows), queue.dtype), labels.to(torch.int64, copy=True)
    contents = Contents(stored, labels, position=num_rows % len(rows))
    state.update({f"{prefix}queue.{name}": value for name, value in state_of(contents).items()})
    # What PML's class has no counterpart for starts afresh.
    for key, value in memory.state_dict(prefix=prefix).items():
        if not key.startswith((prefix + "loss.", prefix + "miner.")):
            state.setdefault(key, value)
