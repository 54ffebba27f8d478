"""Training under autocast."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.on_gpu.contract.check import Check, Outcome, name_of, relative_error
from benchmarks.on_gpu.contract.memories import DIM, KINDS, Batch, batches, build, rows_of

_STEPS, _TOLERANCE = 16, 2e-4
_CPU = torch.device("cpu")


def checks() -> Iterator[Check]:
    for kind in KINDS:
        for dtype in (torch.float16, torch.bfloat16):
            yield Check("autocast", kind, name_of(dtype), partial(_train, kind, dtype))


def _train(kind: str, dtype: torch.dtype, device: torch.device) -> Outcome:
    """Compares losses and rows with those of float64, of the same embeddings; gradients have to be finite.

    In float16 a GradScaler scales the loss, as its users do.
    """
    torch.manual_seed(0)
    layer = nn.Linear(DIM, DIM).to(device)
    memory, exact = build(kind).to(device), build(kind, memory_dtype=torch.float64)
    optimizer = torch.optim.SGD(layer.parameters(), 0.01)
    scaler = _scaler(device, is_enabled=dtype == torch.float16)
    error = 0.0
    for batch in batches(_STEPS):
        given = batch.on(device)
        with torch.autocast(device.type, dtype):
            embeddings = layer(given.embeddings.detach())
            loss = memory(embeddings, given.labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if not all(bool(x.grad.isfinite().all()) for x in layer.parameters() if x.grad is not None):
            return Outcome(float("inf"), _TOLERANCE, "a gradient is not finite")
        scaler.step(optimizer)
        scaler.update()
        same = Batch(embeddings.detach().double().cpu(), batch.labels).on(_CPU, torch.float64)
        expected = exact(*same)
        error = max(error, relative_error([loss, rows_of(memory)], [expected, rows_of(exact)]))
    return Outcome(error, _TOLERANCE, f"embeddings in {name_of(embeddings.dtype)}")


def _scaler(device: torch.device, is_enabled: bool) -> Any:
    # A scale that is too large for a first step would skip it, as it may; this one is not.
    options: dict[str, Any] = {"init_scale": 2.0**10, "enabled": is_enabled}
    if hasattr(torch.amp, "GradScaler"):  # since torch 2.3
        return torch.amp.GradScaler(device.type, **options)
    options["enabled"] = is_enabled and device.type == "cuda"
    return torch.cuda.amp.GradScaler(**options)
