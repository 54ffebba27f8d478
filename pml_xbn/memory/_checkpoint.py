"""Checkpoints of PML's own memory, and of memories of another size."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from .._arithmetic import at_least_float32
from ._queue import Contents, Queue
from ._rows import Rows


def prepare_state(state: dict[str, Any], prefix: str, memory: nn.Module, queue: Queue) -> None:
    """Refuses a state of a memory of another size, and turns one of PML's ``CrossBatchMemory`` into ours."""
    rows, labels = (state.pop(prefix + name, None) for name in ("embedding_memory", "label_memory"))
    own = queue.contents.rows
    own_size = own.num_places, own.stored.shape[1]
    saved_rows = state.get(prefix + "queue.rows") if rows is None else rows
    for axis, name in enumerate(("memory_size", "embedding_size")):
        if saved_rows is not None and saved_rows.shape[axis] != own_size[axis]:
            raise ValueError(
                f"the checkpoint's memory has shape {tuple(saved_rows.shape)}, this one {own_size}: "
                f"build it with {name}={saved_rows.shape[axis]}, not {own_size[axis]}"
            )
    if rows is not None and labels is not None:
        found = _contents_of_pmls(rows, labels, queue.dtype).state()
        state.update({f"{prefix}queue.{name}": values for name, values in found.items()})
        # What PML's class has no counterpart for stays as it is.
        for key, value in memory.state_dict(prefix=prefix).items():
            if not key.startswith((prefix + "loss.", prefix + "miner.")):
                state.setdefault(key, value)


def _contents_of_pmls(rows: Tensor, labels: Tensor, dtype: torch.dtype) -> Contents:
    """Returns the contents of a memory with these rows ``(M, d)``, filled up to the last that is not zero."""
    occupied = (rows != 0).any(dim=1).nonzero()
    num_rows = int(occupied[-1]) + 1 if len(occupied) else 0
    warnings.warn(
        f"the checkpoint holds no queue position, as those of PML's CrossBatchMemory: took {num_rows} of "
        f"{len(rows)} rows to be filled and row {num_rows % len(rows)} to be the next one written, and "
        "count calls from 0, so warmup and delay start over",
        stacklevel=2,
    )
    with torch.inference_mode(False):
        values = at_least_float32(rows.detach()[:num_rows])
        stored = Rows.of(values, len(rows), dtype)
        labels = labels.to(torch.int64, copy=True)
        return Contents(stored, labels, torch.full_like(labels, -1), position=num_rows % len(rows))
