"""Stored rows after many steps, against the papers' equations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

import torch
from torch import Tensor

from benchmarks.on_gpu.contract.check import Check, Outcome, name_of, relative_error
from benchmarks.on_gpu.contract.memories import KINDS, batches, build, rows_of
from benchmarks.on_gpu.contract.replay import replay

# Of the largest number. Rows are rounded when they are stored, and those of a group whenever it is adapted.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-8}


def checks(steps: int) -> Iterator[Check]:
    for kind in KINDS:
        for dtype in TOLERANCES:
            case = f"{kind}, {steps} steps"
            yield Check("rows", case, name_of(dtype), partial(_compare, kind, dtype, steps))


def _compare(kind: str, dtype: torch.dtype, steps: int, device: torch.device) -> Outcome:
    memory = build(kind, memory_dtype=dtype).to(device)
    for batch in batches(steps):
        memory(*batch.on(device))
    return Outcome(relative_error([rows_of(memory)], [_expected(kind, steps)]), TOLERANCES[dtype])


@lru_cache
def _expected(kind: str, steps: int) -> Tensor:
    return replay(kind, steps)
