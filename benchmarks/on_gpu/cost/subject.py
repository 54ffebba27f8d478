"""A full memory, or the two matrix products alone, that takes a step forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytorch_metric_learning import losses, miners
from torch import Tensor

from benchmarks.cost.embeddings import DIM, IMAGES_PER_CLASS, Embeddings
from benchmarks.on_gpu.cost.case import PML, PRODUCTS, Case
from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper

_PART = 8_192  # rows that are written to a memory at once
_SUPERCLASSES = 20
_WRAPPERS: dict[str, Any] = {"XBN": XBNWrapper, "AXBN": AXBNWrapper, "PC-XBN": PerClassXBN}
Batch = tuple[Tensor, Tensor]


def draw_batch(case: Case, data: Embeddings) -> Batch:
    """Returns embeddings, of shape (batch, 512), and labels; all methods of a case are given the same."""
    return data.draw(case.batch // IMAGES_PER_CLASS, IMAGES_PER_CLASS)


def build_step(case: Case, method: str, data: Embeddings, device: torch.device) -> Callable[[Batch], None]:
    """Returns a function that takes one step, forward and backward, on a batch."""
    is_memory = method != PRODUCTS
    compute = full_memory(case, method, data, device) if is_memory else products(case, data)
    is_autocast = case.precision == "autocast"

    def step(batch: Batch) -> None:
        embeddings, labels = batch[0].detach().requires_grad_(), batch[1]
        with torch.autocast(device.type, torch.bfloat16, enabled=is_autocast):
            value = compute(embeddings, labels)
        value.backward(torch.ones_like(value))

    return step


def full_memory(
    case: Case, method: str, data: Embeddings, device: torch.device, nonfinite: str = "raise"
) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a memory whose rows are all occupied: PML's class, or one of ours."""
    loss = getattr(losses, case.loss)(**({"temperature": 0.1} if case.loss == "SupConLoss" else {}))
    miner = None if case.miner == "none" else getattr(miners, case.miner)()
    memory: Any
    if method == PML:
        memory = losses.CrossBatchMemory(loss, DIM, case.rows, miner)
    else:
        dtype = torch.bfloat16 if case.precision == "bfloat16 rows" else torch.float32
        options: dict[str, Any] = {"miner": miner, "memory_dtype": dtype, "nonfinite": nonfinite}
        if method == "SC-XBN":
            superclasses = [label % _SUPERCLASSES for label in range(case.classes)]
            memory = SuperClassXBN(loss, DIM, case.rows, superclasses=superclasses, **options)
        else:
            memory = _WRAPPERS[method](loss, DIM, case.rows, **options)
    memory.to(device)
    for first in range(0, case.rows, _PART):
        rows, labels = data.draw(min(_PART, case.rows - first), 1)
        memory.add_to_memory(rows, labels, len(rows))
    forward: Callable[[Tensor, Tensor], Tensor] = memory
    return forward


def products(case: Case, data: Embeddings) -> Callable[[Tensor, Tensor], Tensor]:
    """The floor: similarities of the batch and the rows, and their gradient times the rows."""
    dtype = torch.float32 if case.precision == "float32" else torch.bfloat16
    rows = data.draw(case.rows, 1)[0].to(dtype)
    return lambda embeddings, labels: embeddings.to(dtype) @ rows.T
