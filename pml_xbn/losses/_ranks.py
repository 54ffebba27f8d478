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


class Exchange:
    """What the ranks tell each other at the end of a block.

    Attributes:
        mine: this rank's numbers, ``(k,)``, which the block may set; kept to the precision of float64.
        of_ranks: those of every rank, ``(ranks, k)``, float64; set at the end.
    """

    of_ranks: Tensor

    def __init__(self, mine: Tensor) -> None:
        self.mine = mine

    @contextmanager
    def at_end(self) -> Iterator[None]:
        """A block that raises on every rank if it raises on one."""
        error = None
        try:
            yield
        except Exception as raised:
            error = raised
        self.of_ranks = _exchange(error, self.mine)


@contextmanager
def same_draws(seed: int, device: torch.device) -> Iterator[None]:
    """A block that draws the same random numbers on all ranks, and takes none from those that follow it."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def gather_rows(rows: Tensor, sizes: list[int]) -> Tensor:
    """The rows of all ranks in rank order, given how many each brings: ``(sum(sizes), ...)``."""
    longest = rows.new_zeros(max(sizes), *rows.shape[1:], device=_device())
    longest[: len(rows)] = rows
    of_ranks = [torch.empty_like(longest) for _ in sizes]
    dist.all_gather(of_ranks, longest)
    return torch.cat([x[:size] for x, size in zip(of_ranks, sizes, strict=True)]).to(rows.device)


def of_first_rank(values: Tensor) -> Tensor:
    """What the first rank has in place of these values, which all ranks have."""
    sent = values.to(_device()).contiguous()
    dist.broadcast(sent, 0)
    return sent.to(values.device)


def _exchange(error: Exception | None, numbers: Tensor) -> Tensor:
    """The numbers of every rank.

    Raises:
        Exception: this rank's own error.
        ValueError, RuntimeError: another rank's, with its number and message.
    """
    mine = torch.cat([torch.tensor([error is not None]), numbers.cpu()]).double().to(_device())
    of_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, mine)
    reports = torch.stack(of_ranks).cpu()  # one wait for all of them
    if reports[:, 0].any():
        _raise_together(error)
    return reports[:, 1:]


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
