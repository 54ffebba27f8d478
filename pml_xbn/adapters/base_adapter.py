"""What every adapter shares: the hook's signature, its guard clauses and its recorded numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytorch_metric_learning.utils.module_with_records import ModuleWithRecords
from torch import Tensor

from .moments import Moments, at_least_float32, moments, std_ratio
from .running_moments import RunningMoments

# Whether to refuse, as a 0-d tensor that stays on its device, and the error's text if so.
Refusal = tuple[Tensor, Callable[[], str]]


class BaseAdapter(ModuleWithRecords):
    """A memory hook that moves the stored rows to where the current model would put them.

    A subclass implements :meth:`adapt` and, if it estimates the moments to adapt to from more than one
    batch, :meth:`estimate`. With fewer than two rows in the batch, or in memory, there are no moments
    and the rows stay as they are.

    As a plain hook, called, an adapter reads the memory twice and returns new rows. A memory that tells it of
    every row that comes and goes, by :meth:`replaced` and :meth:`forget`, calls :meth:`adapt_into`
    instead, which reads the memory once and writes the new rows where the memory wants them.

    Args:
        collect_stats: record ``mean_distance``, the L2 distance between the means of memory and batch
            before adaptation, and ``std_ratio``, the mean over dimensions of σ[B]/σ[R]. Reading them
            makes a GPU wait for the host. Default: PML's ``COLLECT_STATS``.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.running = RunningMoments()
        self.add_to_recordable_attributes(list_of_names=["mean_distance", "std_ratio"], is_stat=True)

    def forward(
        self, memory: Tensor, memory_labels: Tensor, batch: Tensor, batch_labels: Tensor
    ) -> Tensor | None:
        """Returns the adapted rows, or None to leave them as they are.

        Args:
            memory: occupied rows of the memory, ``(n, d)``; not modified.
            memory_labels: ``(n,)``, integers.
            batch: detached rows about to be enqueued, ``(b, d)``.
            batch_labels: ``(b,)``, integers.
        """
        self.running.forget()
        rows = at_least_float32(memory)
        out = torch.empty_like(rows)
        is_adapted = self.adapt_into(out, rows, memory_labels, batch, batch_labels)
        self.running.forget()
        return out.to(memory.dtype) if is_adapted else None

    def adapt_into(
        self, out: Tensor, memory: Tensor, memory_labels: Tensor, batch: Tensor, batch_labels: Tensor
    ) -> bool:
        """Writes the adapted rows to ``out`` ``(n, d)``; False if they stay and nothing was written."""
        self.reset_stats()
        if len(batch) < 2:
            return False
        batch_moments = moments(batch)
        target = self.estimate(batch_moments, len(batch))
        if len(memory) < 2:
            return False
        source = self.running.moments_of(memory)
        if self.collect_stats:
            self.mean_distance = (source.mean - batch_moments.mean).norm().item()
            self.std_ratio = std_ratio(source, batch_moments).mean().item()
        self.adapt(out, memory, memory_labels, batch, batch_labels, source, target)
        return True

    def replaced(self, removed: Tensor, added: Tensor) -> None:
        """Tells that rows ``(r, d)`` have left the memory and rows ``(b, d)`` have come."""
        self.running.replace(removed, added)

    def forget(self) -> None:
        """Tells that the memory has changed otherwise."""
        self.running.forget()

    def refusal(self, labels: Tensor) -> Refusal | None:
        """Checks labels ``(b,)`` before anything is stored; None where any label will do."""
        return None

    def estimate(self, batch_moments: Moments, batch_size: int) -> Moments:
        """Moments to adapt to; those of the batch unless a subclass filters them."""
        return batch_moments

    def adapt(
        self,
        out: Tensor,
        memory: Tensor,
        memory_labels: Tensor,
        batch: Tensor,
        batch_labels: Tensor,
        source: Moments,
        target: Moments,
    ) -> None:
        """Writes the new rows to ``out`` and tells ``self.running`` of it.

        Given are the moments of the memory, and those to adapt to.
        """
        raise NotImplementedError

    # What a step changes goes here, and is replaced by it, not written to: so a memory can take it back.
    def get_extra_state(self) -> dict[str, Any]:
        return {"running": self.running.state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.running.load(state["running"])
