"""What a checkpoint holds of a memory, and what can be told from PML's own."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor


def check_same_size(stored: Tensor, own: Tensor) -> None:
    """Raises a ValueError if a checkpoint's memory has another size than this one."""
    for axis, name in enumerate(("memory_size", "embedding_size")):
        if stored.ndim != 2 or stored.shape[axis] != own.shape[axis]:
            raise ValueError(
                f"the checkpoint's memory has shape {tuple(stored.shape)}, this one {tuple(own.shape)}: "
                f"build it with {name}={stored.shape[axis]}, not {own.shape[axis]}"
            )


def inferred_queue(rows: Tensor) -> dict[str, Any]:
    """State of the queue that PML's ``CrossBatchMemory`` leaves out of its checkpoint.

    Rows are filled up to the last one that is not zero. In a full memory the oldest row cannot be told;
    it is taken to be the first.
    """
    occupied = (rows != 0).any(dim=1).nonzero()
    num_rows = int(occupied[-1]) + 1 if len(occupied) else 0
    queue = {
        "queue_idx": num_rows % len(rows),
        "has_been_filled": num_rows == len(rows),
        "num_calls": 0,
    }
    warnings.warn(
        f"the checkpoint holds no queue position, as those of PML's CrossBatchMemory: took {num_rows} of "
        f"{len(rows)} rows to be filled and row {queue['queue_idx']} to be the next one written, and "
        "count calls from 0, so warmup and delay start over",
        stacklevel=2,
    )
    return queue
