"""What a call can be given beside embeddings and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu

from benchmarks.on_gpu.contract.check import Check, Outcome, relative_error
from benchmarks.on_gpu.contract.memories import (
    BATCH_SIZE,
    KINDS,
    NUM_CLASSES,
    Batch,
    batches,
    build,
    rows_of,
    step,
)

# Of a class there may be three rows in memory, whose spread in some dimension is small.
_STEPS, _TOLERANCE = 16, 1e-3
_CPU = torch.device("cpu")
_NUM_SAMPLES = 8 * NUM_CLASSES


def _mask(batch: Batch, number: int) -> dict[str, Any]:
    is_stored = torch.arange(BATCH_SIZE) % 4 > 0
    return {"enqueue_mask": is_stored.to(batch.labels.device)}


def _pairs(batch: Batch, number: int) -> dict[str, Any]:
    pairs = lmu.get_all_pairs_indices(batch.labels)
    return {"indices_tuple": tuple(x[::2] for x in pairs)}


def _ids(batch: Batch, number: int) -> dict[str, Any]:
    """Returns samples that come again every third step with the same label, and some without a number."""
    ids = (number * BATCH_SIZE + torch.arange(BATCH_SIZE)) % _NUM_SAMPLES
    ids[::8] = -1
    return {"sample_ids": ids.to(batch.labels.device)}


_OPTIONS: dict[str, tuple[Callable[[Batch, int], dict[str, Any]], dict[str, Any]]] = {
    "enqueue_mask": (_mask, {}),
    "indices_tuple": (_pairs, {}),
    "sample_ids": (_ids, {}),
    "sample_ids, averaged": (_ids, {"update": "average", "update_momentum": 0.9}),
}


def checks() -> Iterator[Check]:
    for option in _OPTIONS:
        for kind in KINDS:
            yield Check(option, kind, "float32", partial(_compare, option, kind))


def _compare(option: str, kind: str, device: torch.device) -> Outcome:
    """Compares with the same memory in float64 on the CPU."""
    give, settings = _OPTIONS[option]
    memory = build(kind, **settings).to(device)
    exact = build(kind, memory_dtype=torch.float64, **settings)
    error = 0.0
    for number, batch in enumerate(batches(_STEPS)):
        here, there = batch.on(_CPU, torch.float64), batch.on(device)
        found = step(memory, there, **give(there, number))
        expected = step(exact, here, **give(here, number))
        error = max(error, relative_error([*found, rows_of(memory)], [*expected, rows_of(exact)]))
    return Outcome(error, _TOLERANCE)
