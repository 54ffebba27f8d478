"""Blocks at whose end every rank hears how the others fared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from ._collectives import backend_device, finish_reductions


class Exchange:
    """A block at whose end ranks tell each other numbers, and which raises on all ranks if it does on one.

    Another rank's error is raised as a ValueError or RuntimeError that names the rank.

    Attributes:
        values: this rank's, ``(k,)``, float64; the block may set others, as many.
        by_rank: those of every rank, ``(ranks, k)``, float64; set at the end of the block.

    Args:
        size: k.
        has_reductions: whether the block calls :func:`all_reduced`, and nothing else that ranks do together.
    """

    by_rank: Tensor

    def __init__(self, size: int = 0, *, has_reductions: bool = False) -> None:
        self.values = torch.zeros(size, dtype=torch.float64)
        self._has_reductions = has_reductions

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and not isinstance(error, Exception):
            return  # an interrupt: nobody waits for the others
        if self._has_reductions:
            finish_reductions()
        own = torch.cat([torch.tensor([error is not None]), self.values.cpu()]).to(backend_device())
        by_rank = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(by_rank, own)
        has_failed, self.by_rank = torch.stack(by_rank).cpu().tensor_split([1], dim=1)  # one wait for all
        if not has_failed.any():
            return
        messages: list[Any] = [None] * len(by_rank)
        told = None if error is None else (isinstance(error, ValueError), f"{type(error).__name__}: {error}")
        dist.all_gather_object(messages, told)
        if error is None:
            rank, (is_value_error, message) = next((r, m) for r, m in enumerate(messages) if m is not None)
            raise (ValueError if is_value_error else RuntimeError)(f"rank {rank} failed with {message}")
