"""Whether a step is kept out of a CUDA graph, whose replays would store in the same places."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.on_gpu.contract.check import Check, Outcome, relative_error
from benchmarks.on_gpu.contract.memories import KINDS, batches, build, rows_of

_STEPS = 8  # before the capture


def checks() -> Iterator[Check]:
    for kind in KINDS:
        yield Check("a capture is refused", kind, "float32", partial(_capture, kind))


def _capture(kind: str, device: torch.device) -> Outcome:
    """Captures a step; it has to be refused, and the memory to stay as it was."""
    if device.type != "cuda":
        return Outcome(0, 0, "a CPU has no graphs")
    memory = build(kind, nonfinite="ignore").to(device)
    *given, last = (batch.on(device) for batch in batches(_STEPS + 1))
    for batch in given:
        memory(*batch).backward()
    before = rows_of(memory).clone()
    torch.cuda.synchronize(device)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            memory(*last)
    except RuntimeError as error:
        if "while a CUDA graph is captured" not in str(error):
            raise
        return Outcome(relative_error([rows_of(memory)], [before]), 0)
    return Outcome(float("inf"), 0, "a step was captured")
