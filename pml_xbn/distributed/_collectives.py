"""Collectives of torch.distributed, on the device that the backend wants, and errors that all ranks raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


def is_distributed() -> bool:
    """Returns whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather_rows(rows: Tensor, sizes: list[int]) -> Tensor:
    """Returns the rows of all ranks in rank order, ``(sum(sizes), ...)``.

    Args:
        sizes: number of rows of every rank.
    """
    padded = rows.new_zeros(max(sizes), *rows.shape[1:], device=sending_device(rows.device))
    padded[: len(rows)] = rows
    by_rank = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(by_rank, padded)
    return torch.cat([x[:size] for x, size in zip(by_rank, sizes, strict=True)]).to(rows.device)


def all_reduced(values: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """Returns what the values of all ranks reduce to, without gradient."""
    result = values.detach().to(sending_device(values.device), copy=True).contiguous()
    dist.all_reduce(result, op)
    return result.to(values.device)


def sending_device(device: torch.device) -> torch.device:
    """Returns the device from which tensors of another are sent: that one, if NCCL sends from it."""
    backends = str(dist.get_backend_config())  # such as cpu:gloo,cuda:nccl
    if "nccl" not in backends:
        return torch.device("cpu")
    if device.type == "cuda" or "cpu:" in backends:
        return device
    bound = getattr(dist.group.WORLD, "bound_device_id", None)  # since torch 2.2
    return bound or torch.device("cuda", torch.cuda.current_device())


@contextmanager
def same_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Draws the same random numbers on all ranks in a block; the generators go on as if it had drawn none."""
    with torch.random.fork_rng(range(torch.cuda.device_count()) if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class Exchange(AbstractContextManager["Exchange"]):
    """A block at whose end ranks tell each other numbers, and which raises on all ranks if it does on one.

    Another rank's error is raised as a ValueError or RuntimeError that names the rank.

    Attributes:
        values: this rank's, ``(k,)``, float64; the block may set others, as many.
        by_rank: those of every rank, ``(ranks, k)``, float64; set at the end of the block.

    Args:
        size: k.
    """

    by_rank: Tensor

    def __init__(self, size: int = 0) -> None:
        self.values = torch.zeros(size, dtype=torch.float64)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and not isinstance(error, Exception):
            return  # an interrupt: nobody waits for the others
        own = torch.cat([torch.tensor([error is not None], device="cpu"), self.values.cpu()])
        own = own.to(sending_device(own.device))
        by_rank = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(by_rank, own)
        has_failed, self.by_rank = torch.stack(by_rank).cpu().tensor_split([1], dim=1)  # one wait for all
        if not has_failed.any():
            return
        messages: list[Any] = [None] * len(by_rank)
        told = None if error is None else (isinstance(error, ValueError), f"{type(error).__name__}: {error}")
        dist.all_gather_object(messages, told)
        if error is None:
            rank = next(rank for rank, told in enumerate(messages) if told is not None)
            is_value_error, message = messages[rank]
            raise (ValueError if is_value_error else RuntimeError)(f"rank {rank} failed with {message}")
