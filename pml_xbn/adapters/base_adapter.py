"""What every adapter shares: the hook's signature, its guard clauses and its recorded numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytorch_metric_learning.utils.module_with_records import ModuleWithRecords
from torch import Tensor

from .moments import Moments, moments, scale_between

# Whether to refuse, as a 0-d tensor that stays on its device, and the error's text if so.
Refusal = tuple[Tensor, Callable[[], str]]


class BaseAdapter(ModuleWithRecords):
    """A memory hook that moves the stored rows to where the current model would put them.

    A subclass implements :meth:`adapt` and, if it estimates the moments to adapt to from more than one
    batch, :meth:`estimate`. With fewer than two rows in the batch, or in memory, there are no moments
    and the rows stay as they are.

    Args:
        collect_stats: record ``mean_distance``, the L2 distance between the means of memory and batch
            before adaptation, and ``std_ratio``, the mean over dimensions of σ[B]/σ[R]. Reading them
            makes a GPU wait for the host. Default: PML's ``COLLECT_STATS``.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
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
        self.reset_stats()
        if len(batch) < 2:
            return None
        batch_moments = moments(batch)
        target = self.estimate(batch_moments, len(batch))
        if len(memory) < 2:
            return None
        memory_moments = moments(memory)
        if self.collect_stats:
            self._record(memory_moments, batch_moments)
        return self.adapt(memory, memory_labels, batch, batch_labels, memory_moments, target)

    def refusal(self, labels: Tensor) -> Refusal | None:
        """Checks labels ``(b,)`` before anything is stored; None where any label will do."""
        return None

    def estimate(self, batch_moments: Moments, batch_size: int) -> Moments:
        """Moments to adapt to; those of the batch unless a subclass filters them."""
        return batch_moments

    def adapt(
        self,
        memory: Tensor,
        memory_labels: Tensor,
        batch: Tensor,
        batch_labels: Tensor,
        source: Moments,
        target: Moments,
    ) -> Tensor:
        """Returns the new rows ``(n, d)``, given the moments of memory and those to adapt to."""
        raise NotImplementedError

    def _record(self, memory_moments: Moments, batch_moments: Moments) -> None:
        self.mean_distance = (memory_moments.mean - batch_moments.mean).norm().item()
        self.std_ratio = scale_between(memory_moments, batch_moments).mean().item()
