"""What the processes of a distributed run tell each other about a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch import distributed as dist


def are_many() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def exchange(error: Exception | None, *numbers: int) -> list[list[int]]:
    """Tells all ranks whether this one has failed.

    Args:
        error: what this rank failed with, or None.
        numbers: to tell the others, as many on every rank.

    Returns:
        Every rank's numbers, in rank order.

    Raises:
        Exception: this rank's own error.
        ValueError, RuntimeError: another rank's, with its number and message.
    """
    mine = torch.tensor([error is not None, *numbers], dtype=torch.int64, device=_device())
    of_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, mine)
    reports = torch.stack(of_ranks).tolist()  # one wait for all of them
    if any(has_failed for has_failed, *_ in reports):
        _raise_together(error)
    return [numbers for _, *numbers in reports]


@contextmanager
def fail_together() -> Iterator[None]:
    """A block that raises on every rank if it raises on one."""
    error = None
    try:
        yield
    except Exception as raised:
        error = raised
    exchange(error)


def gather_rows(rows: Tensor, sizes: list[int]) -> Tensor:
    """The rows of all ranks in rank order, given how many each brings: ``(sum(sizes), ...)``."""
    longest = rows.new_zeros(max(sizes), *rows.shape[1:], device=_device())
    longest[: len(rows)] = rows
    of_ranks = [torch.empty_like(longest) for _ in sizes]
    dist.all_gather(of_ranks, longest)
    return torch.cat([x[:size] for x, size in zip(of_ranks, sizes, strict=True)]).to(rows.device)


def _raise_together(error: Exception | None) -> None:
    messages: list[tuple[bool, str] | None] = [None] * dist.get_world_size()
    mine = None if error is None else (isinstance(error, ValueError), f"{type(error).__name__}: {error}")
    dist.all_gather_object(messages, mine)
    if error is not None:
        raise error
    rank, (is_value_error, message) = next((r, m) for r, m in enumerate(messages) if m is not None)
    raise (ValueError if is_value_error else RuntimeError)(f"rank {rank} failed with {message}")


def _device() -> torch.device:
    """Where the backend wants its tensors."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
