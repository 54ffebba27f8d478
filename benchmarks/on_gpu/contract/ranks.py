"""One rank that sends through NCCL, or gloo on a CPU, what ranks tell each other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import distributed

from benchmarks.on_gpu.contract.check import Check, Outcome, relative_error
from benchmarks.on_gpu.contract.memories import KINDS, batches, build, rows_of, step

_STEPS, _TOLERANCE = 16, 2e-4
_CPU = torch.device("cpu")
# A group of one rank is none to a memory, which then sends nothing: it is told that there are more.
_ASKED = "pml_xbn.distributed._group.Group.has_others"


def checks() -> Iterator[Check]:
    for kind in KINDS:
        for option in ("gather_distributed", "shard_distributed"):
            yield Check("one rank", f"{kind}, {option}", "float32", partial(_compare, kind, option))


def _compare(kind: str, option: str, device: torch.device) -> Outcome:
    exact = build(kind, memory_dtype=torch.float64)
    error = 0.0
    with _group(device):
        is_gathered = option == "gather_distributed"
        memory = build(kind, gather_distributed=is_gathered, shard_distributed=not is_gathered).to(device)
        for batch in batches(_STEPS):
            found = step(memory, batch.on(device))
            expected = step(exact, batch.on(_CPU, torch.float64))
            error = max(error, relative_error(found, expected))
        backend = distributed.get_backend()
        if is_gathered:  # the rows of a sharded memory are spread
            error = max(error, relative_error([rows_of(memory)], [rows_of(exact)]))
    return Outcome(error, _TOLERANCE, backend)


@contextmanager
def _group(device: torch.device) -> Iterator[None]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=(folder / "group").as_uri(),
            rank=0,
            world_size=1,
            timeout=timedelta(seconds=30),
        )
        stack.callback(distributed.destroy_process_group)
        stack.enter_context(patch(_ASKED, True))
        yield
