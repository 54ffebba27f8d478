"""Stored rows after many steps, against the papers' equations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial

import torch
from torch import Tensor

from benchmarks.on_gpu.contract.check import Check, Outcome, name_of, relative_error
from benchmarks.on_gpu.contract.memories import DIM, KINDS, batches, build, rows_of
from benchmarks.on_gpu.contract.replay import replay
from pml_xbn import _arithmetic

_ROWS_OF_A_PART = 24  # of 160
# Of the largest number. Rows are rounded when they are stored, and those of a group whenever it is adapted.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6, torch.float16: 2.0**-8}


def checks(steps: int) -> Iterator[Check]:
    for kind in KINDS:
        case = f"{kind}, {steps} steps"
        for dtype in TOLERANCES:
            yield Check("rows", case, name_of(dtype), partial(_compare, kind, dtype, steps))
        yield Check("rows in parts", case, "float32", partial(_compare_in_parts, kind, steps))


def _compare(kind: str, dtype: torch.dtype, steps: int, device: torch.device) -> Outcome:
    memory = build(kind, memory_dtype=dtype).to(device)
    for batch in batches(steps):
        memory(*batch.on(device))
    return Outcome(relative_error([rows_of(memory)], [_expected(kind, steps)]), TOLERANCES[dtype])


def _compare_in_parts(kind: str, steps: int, device: torch.device) -> Outcome:
    """The same, as of a memory that is too large to be worked on at once."""
    with _parts_of(_ROWS_OF_A_PART):
        return _compare(kind, torch.float32, steps, device)


@contextmanager
def _parts_of(num_rows: int) -> Iterator[None]:
    """Has a memory work on so many rows at a time, of which it may make eight copies in float64."""
    before = dict(_arithmetic._NUMBERS_AT_A_TIME)
    _arithmetic._NUMBERS_AT_A_TIME.update(dict.fromkeys(before, 8 * DIM * num_rows))
    try:
        yield
    finally:
        _arithmetic._NUMBERS_AT_A_TIME.update(before)


@lru_cache
def _expected(kind: str, steps: int) -> Tensor:
    return replay(kind, steps)
