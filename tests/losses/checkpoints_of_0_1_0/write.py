"""Writes the checkpoints beside it; it was run once, with version 0.1.0: ``python write.py``.

Later versions must load what users saved with that one, so the files stay as they are. The script is kept to
show what they hold, not to be run again: a later version would write its own format, and its own results.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

import pml_xbn.losses

D, MEMORY_SIZE, BATCH_SIZE = 4, 20, 6
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("AdaptiveCrossBatchMemory", {}),
    "xbn": ("XBNWrapper", {}),
    "xbn_momentum": ("XBNWrapper", {"momentum": 0.5}),
    "xbn_centre": ("XBNWrapper", {"match_std": False}),
    "axbn": ("AXBNWrapper", {"measurement_noise": 30, "gain_update_interval": 3}),
    "per_class": ("PerClassXBN", {}),
    "super_class": ("SuperClassXBN", {"superclasses": [0, 1, 1, 0, 1]}),
}
CALLS_BEFORE = {"partial": 2, "wrapped": 7}
CALLS_AFTER = 3


def checkpoint(class_name: str, options: dict[str, Any], calls: int) -> dict[str, Any]:
    """The state after so many calls, and what three further calls made of it."""
    loss_fn = getattr(pml_xbn.losses, class_name)(ContrastiveLoss(), D, MEMORY_SIZE, **options)
    batches = drifting_batches(calls + CALLS_AFTER)
    for batch in batches[:calls]:
        loss_fn(*batch)
    saved = {
        "class": class_name,
        "options": options,
        "state": copy.deepcopy(loss_fn.state_dict()),
        "num_rows": loss_fn.num_rows,
        "queue_idx": loss_fn.queue_idx,
        "num_calls": loss_fn.num_calls,
        "batches": batches[calls:],
    }
    saved["losses"], saved["rows"] = [], []
    for batch in saved["batches"]:
        saved["losses"].append(loss_fn(*batch).item())
        saved["rows"].append(occupied_rows(loss_fn))
    return saved


def drifting_batches(count: int) -> list[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng(0)
    return [
        (
            torch.tensor(rng.normal(step, 1 + rng.random(D), (BATCH_SIZE, D)), dtype=torch.float32),
            torch.tensor(rng.integers(0, 5, BATCH_SIZE)),
        )
        for step in range(count)
    ]


def occupied_rows(loss_fn: nn.Module) -> tuple[Tensor, Tensor]:
    n = loss_fn.num_rows
    return loss_fn.embedding_memory[:n].clone(), loss_fn.label_memory[:n].clone()


if __name__ == "__main__":
    for name, case in CASES.items():
        for filling, calls in CALLS_BEFORE.items():
            torch.save(checkpoint(*case, calls), Path(__file__).with_name(f"{name}_{filling}.pt"))
