"""One rank of the distributed tests: runs every scenario and saves what it saw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kinds import KINDS, WRAPPERS
from pytorch_metric_learning.losses import ContrastiveLoss, CrossBatchMemory, SupConLoss
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import Tensor, distributed, nn

from pml_xbn import XBNWrapper
from pml_xbn.adapters import CovarianceMatching
from pml_xbn.losses import AdaptiveCrossBatchMemory

D, M = 4, 17


def of_covariances(*args: Any, **kwargs: Any) -> nn.Module:
    memory = AdaptiveCrossBatchMemory(*args, **kwargs)
    memory.register_memory_hook(CovarianceMatching())
    return memory


MEMORIES: dict[str, Callable[..., nn.Module]] = {
    **{name: KINDS[name].memory for name in WRAPPERS},
    "covariances": of_covariances,
}
STEPS = 8


def make_loss() -> nn.Module:
    return SupConLoss(reducer=MeanReducer())


def batch_of(rank: int, step: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(size, D, generator=generator) + step
    return inputs, torch.arange(size) % 3


def sizes_of(step: int, world_size: int, equal: bool) -> list[int]:
    """Rows that every rank brings; one brings none now and then."""
    return [4] * world_size if equal else [(rank + step) % 4 + (rank == 0) for rank in range(world_size)]


def gradient_of(model: nn.Linear) -> Tensor:
    """The gradient that DistributedDataParallel would leave."""
    gradient = model.weight.grad.clone()
    if distributed.is_initialized():
        distributed.all_reduce(gradient)
        gradient /= distributed.get_world_size()
    return gradient


def memory_of(loss_fn: nn.Module) -> dict[str, Any]:
    return {
        "rows": loss_fn.embedding_memory.clone(),
        "labels": loss_fn.label_memory.clone(),
        "queue_idx": loss_fn.queue_idx,
        "num_rows": getattr(loss_fn, "num_rows", None),
    }


def train(
    loss_fn: nn.Module, rank: int | None, world_size: int, equal: bool, masked: bool = False
) -> list[dict[str, Any]]:
    """Trains a linear model, as one rank, or on the batches of all if ``rank`` is None.

    In float64, lest the rounding of a product that depends on the batch's size, which a batch of
    two rows with a small σ enlarges, be taken for a difference.
    """
    torch.manual_seed(0)
    model = nn.Linear(D, D, bias=False).double()
    history = []
    for step in range(STEPS):
        sizes = sizes_of(step, world_size, equal)
        ranks = range(world_size) if rank is None else [rank]
        batches = [batch_of(r, step, sizes[r]) for r in ranks]
        masks = [torch.arange(sizes[r]) % 2 == 1 for r in ranks]
        inputs, labels, mask = (torch.cat(x) for x in (*zip(*batches, strict=True), masks))
        model.zero_grad()
        loss_fn(model(inputs.double()), labels, None, mask if masked else None).backward()
        history.append({**memory_of(loss_fn), "gradient": gradient_of(model)})
    return history


def skipped(rank: int) -> dict[str, Any]:
    loss_fn = XBNWrapper(SupConLoss(), D, M, gather_distributed=True, nonfinite="skip")
    loss_fn(*batch_of(rank, 0, 4))
    inputs, labels = batch_of(rank, 1, 4)
    if rank == 1:
        inputs[0, 0] = float("inf")
    loss_fn(inputs, labels)
    return memory_of(loss_fn)


def filled(rank: int) -> dict[str, Any]:
    loss_fn = XBNWrapper(SupConLoss(), D, M, gather_distributed=True)
    loss_fn.fill_memory(*batch_of(rank, 0, 3 + rank))
    return memory_of(loss_fn)


def inside_pmls_wrapper(
    make: Callable[..., nn.Module], rank: int, masked: bool = False, **kwargs: Any
) -> dict[str, Any]:
    memory = make(ContrastiveLoss(), D, M, **kwargs)
    mask = torch.arange(4) % 2 == 1 if masked else None
    loss_fn = DistributedLossWrapper(memory)
    losses, gradients = [], []
    for step in range(5):
        inputs, labels = batch_of(rank, step, 4)
        loss = loss_fn(inputs.requires_grad_(), labels, enqueue_mask=mask)
        loss.backward()
        losses.append(loss.detach())
        gradients.append(inputs.grad)
    return {**memory_of(memory), "losses": torch.stack(losses), "gradients": torch.stack(gradients)}


def main(folder: Path) -> None:
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    results: dict[str, Any] = {
        f"{name}, {'equal' if equal else 'unequal'}{', masked' if masked else ''}": train(
            make(make_loss(), D, M, gather_distributed=True, memory_dtype=torch.float64),
            rank,
            world_size,
            equal,
            masked,
        )
        for name, make in MEMORIES.items()
        for equal in (True, False)
        for masked in (False, True)
    }
    results["skipped"] = skipped(rank)
    results["filled"] = filled(rank)
    for masked in (False, True):
        results[f"pml, {masked}"] = inside_pmls_wrapper(CrossBatchMemory, rank, masked)
        for name, make in MEMORIES.items():
            results[f"{name} inside, {masked}"] = inside_pmls_wrapper(make, rank, masked, delay=10**9)
            inside_pmls_wrapper(make, rank, masked)
    torch.save(results, folder / f"rank{rank}.pt")
