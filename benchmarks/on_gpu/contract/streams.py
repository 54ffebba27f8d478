"""Two memories that work at the same time, each in a CUDA stream of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from benchmarks.on_gpu.contract.check import Check, Outcome, relative_error
from benchmarks.on_gpu.contract.memories import KINDS, batches, build, rows_of, step

_STEPS, _TOLERANCE = 40, 2e-4


def checks() -> Iterator[Check]:
    for kind in KINDS:
        yield Check("two streams", kind, "float32", partial(_compare, kind))


def _compare(kind: str, device: torch.device) -> Outcome:
    """Compares with the same memories one after the other."""
    given = [[batch.on(device) for batch in batches(_STEPS, seed)] for seed in range(2)]
    alone = []
    for own in given:
        memory = build(kind).to(device)
        alone.append([*(x for batch in own for x in step(memory, batch)), rows_of(memory)])
    memories = [build(kind).to(device) for _ in given]
    found: list[list[Tensor]] = [[], []]
    streams = [_stream(device), _stream(device)]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    for number in range(_STEPS):
        for memory, own, results, stream in zip(memories, given, found, streams, strict=True):
            with stream:
                results += step(memory, own[number])
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    for memory, results in zip(memories, found, strict=True):
        results.append(rows_of(memory))
    error = max(relative_error(one, other) for one, other in zip(found, alone, strict=True))
    return Outcome(error, _TOLERANCE)


def _stream(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()
