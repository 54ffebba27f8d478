"""Blocks at whose end every rank hears how the others fared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from ._collectives import backend_device, finish_reductions


class Exchange:
    """Numbers that the ranks tell each other at the end of a block, which raises on all ranks if on one.

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

    @contextmanager
    def at_end(self) -> Iterator[None]:
        """Exchanges numbers and errors at the end of the block.

        Raises:
            Exception: this rank's own error.
            ValueError, RuntimeError: another rank's, with its number and message.
        """
        error = None
        try:
            yield
        except Exception as raised:
            error = raised
        if self._has_reductions:
            finish_reductions()
        report = torch.cat([torch.tensor([error is not None]), self.values.cpu()]).double()
        report = report.to(backend_device())
        reports = [torch.empty_like(report) for _ in range(dist.get_world_size())]
        dist.all_gather(reports, report)
        has_failed, self.by_rank = torch.stack(reports).cpu().tensor_split([1], dim=1)  # one wait for all
        if has_failed.any():
            _raise_on_all_ranks(error)


def _raise_on_all_ranks(error: Exception | None) -> None:
    messages: list[Any] = [None] * dist.get_world_size()
    own = None if error is None else (isinstance(error, ValueError), f"{type(error).__name__}: {error}")
    dist.all_gather_object(messages, own)
    if error is not None:
        raise error
    rank, (is_value_error, message) = next((r, m) for r, m in enumerate(messages) if m is not None)
    raise (ValueError if is_value_error else RuntimeError)(f"rank {rank} failed with {message}")
