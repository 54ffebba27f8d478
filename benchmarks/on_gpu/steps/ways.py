"""A step that is eager, compiled or captured, as a function of a batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.cost.embeddings import Embeddings
from benchmarks.on_gpu.cost.case import PML, PRODUCTS, Case
from benchmarks.on_gpu.cost.subject import Batch, full_memory, products
from benchmarks.on_gpu.graph import captured
from benchmarks.on_gpu.steps.cells import CAPTURED, COMPILED, Cell

Loss = Callable[[Tensor, Tensor], Tensor]


def build_loss(cell: Cell, case: Case, data: Embeddings, device: torch.device) -> Loss:
    """Returns what a step calls on embeddings and labels; its memory is full, and has taken two steps."""
    if cell.method == PRODUCTS:
        return products(case, data)
    if cell.method == PML:
        return full_memory(case, PML, data, device)
    loss_fn = full_memory(case, "XBN", data, device, cell.nonfinite)
    for _ in range(2):
        loss_fn(*data.draw(case.batch, 1))
    return compiled(loss_fn) if cell.method == COMPILED else loss_fn


def compiled(loss_fn: Loss) -> Loss:
    """Returns the loss as one compiled graph."""
    whole: Loss = torch.compile(loss_fn, fullgraph=True)

    def call(embeddings: Tensor, labels: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of what it compiles
            return whole(embeddings, labels)

    return call


def build_step(cell: Cell, loss_fn: Loss, batch: Batch) -> Callable[[Batch], None]:
    """Returns a function that takes one step, forward and backward, on a batch of the shape of this one."""

    def step(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        embeddings = embeddings.detach().requires_grad_()
        value = loss_fn(embeddings, labels)
        return torch.autograd.grad(value, embeddings, torch.ones_like(value))

    take = captured(step, *batch) if cell.method == CAPTURED else step

    def on_batch(batch: Batch) -> None:
        take(*batch)

    return on_batch
