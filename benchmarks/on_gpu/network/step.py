"""A training step of a network as one function of images and labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, nn

from benchmarks.cost.embeddings import Embeddings
from benchmarks.on_gpu.cost.case import Case
from benchmarks.on_gpu.graph import captured
from benchmarks.on_gpu.network.cells import GRAD_CACHE, NONE, Cell
from benchmarks.on_gpu.network.networks import build
from benchmarks.on_gpu.steps import cells as steps
from benchmarks.on_gpu.steps.ways import build_loss
from pml_xbn.training import GradCache

_CLASSES, _RATE = 1000, 1e-6
_SCALE = {"float16": 2.0**10, "bfloat16": 1.0}  # of the loss, as a GradScaler has it
Train = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def build_step(cell: Cell, side: int, device: torch.device) -> Callable[[], None]:
    """Returns a function that takes one training step, on images of so many pixels a side."""
    torch.manual_seed(0)
    network = build(cell.network).to(device)
    batch = cell.batch * (4 if cell.method == GRAD_CACHE else 1)
    images = torch.randn(batch, 3, side, side, device=device)
    labels = torch.randint(_CLASSES, (batch // 4,), device=device).repeat_interleave(4)
    model = GradCache(network, cell.batch) if cell.method == GRAD_CACHE else network
    train = _training_step(cell, model, _loss(cell, device), device)
    if cell.method == steps.CAPTURED:
        train = captured(train, images, labels)

    def take() -> None:
        train(images, labels)

    return take


def _loss(cell: Cell, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    if cell.method in (NONE, GRAD_CACHE):
        loss: Callable[[Tensor, Tensor], Tensor] = SupConLoss()
        return loss
    case = Case("SupConLoss", "none", cell.rows, _CLASSES, cell.batch, "float32", ())
    of_step = steps.Cell(cell.rows, cell.batch, "float32", "none", "raise", cell.method)
    return build_loss(of_step, case, Embeddings(_CLASSES, device), device)


def _training_step(
    cell: Cell, model: nn.Module, loss_fn: Callable[[Tensor, Tensor], Tensor], device: torch.device
) -> Train:
    """Returns a step of plain gradient descent, all of which a graph can hold."""
    parameters: list[Tensor] = list(model.parameters())
    dtype = getattr(torch, cell.precision)
    scale = _SCALE[cell.precision]

    def train(images: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        # A cache of weights in half precision would outlive the graph that made it.
        with torch.autocast(device.type, dtype, cache_enabled=False):
            embeddings = model(images)
        value = loss_fn(embeddings.float(), labels)
        gradients = torch.autograd.grad(scale * value.sum(), parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-_RATE / scale)
        return (value.detach(),)

    return train
