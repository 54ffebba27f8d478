"""Collectives of torch.distributed, on the device that the backend wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch import distributed as dist

_OPS = (dist.ReduceOp.SUM, dist.ReduceOp.MAX)
_DTYPES = (torch.float64, torch.float32, torch.int64)


def is_distributed() -> bool:
    """Returns whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather_rows(rows: Tensor, sizes: list[int]) -> Tensor:
    """Returns the rows of all ranks in rank order, ``(sum(sizes), ...)``.

    Args:
        sizes: number of rows of every rank.
    """
    padded = rows.new_zeros(max(sizes), *rows.shape[1:], device=backend_device())
    padded[: len(rows)] = rows
    by_rank = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(by_rank, padded)
    return torch.cat([x[:size] for x, size in zip(by_rank, sizes, strict=True)]).to(rows.device)


def all_reduced(values: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """Returns what the values of all ranks reduce to, without gradient.

    It is announced, so that a rank that has failed can take part without values of its own.
    """
    result = values.detach().to(backend_device(), copy=True).contiguous()
    _announced(1 + _OPS.index(op), _DTYPES.index(result.dtype), result.numel())
    dist.all_reduce(result, op)
    return result.to(values.device)


def finish_reductions() -> None:
    """Takes part in reductions of other ranks until none has any more; for a rank that has none itself."""
    while True:
        op, dtype, size = _announced(0, 0, 0).tolist()
        if op == 0:
            return
        dist.all_reduce(torch.zeros(size, dtype=_DTYPES[dtype], device=backend_device()), _OPS[op - 1])


def _announced(*reduction: int) -> Tensor:
    """Returns the reduction that other ranks announce, while those without one announce zeros."""
    announced = torch.tensor(reduction, device=backend_device())
    dist.all_reduce(announced, dist.ReduceOp.MAX)
    return announced


def reduce_scattered(rows: Tensor, sizes: list[int]) -> Tensor:
    """Returns this rank's rows of the sum over ranks of ``rows``, ``(sizes[rank], ...)``.

    Args:
        rows: ``(sum(sizes), ...)``, in rank order.
        sizes: number of rows of every rank.
    """
    padded = rows.new_zeros(len(sizes), max(sizes), *rows.shape[1:], device=backend_device())
    for rank, part in enumerate(rows.split(sizes)):
        padded[rank, : len(part)] = part
    by_rank = torch.empty_like(padded)  # not reduce_scatter, which gloo lacks in some releases
    dist.all_to_all_single(by_rank, padded)
    return by_rank.sum(dim=0)[: sizes[dist.get_rank()]].to(rows.device)


def backend_device() -> torch.device:
    """Returns the device on which the backend sends tensors."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@contextmanager
def same_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Draws the same random numbers on all ranks in a block; the generators go on as if it had drawn none."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
