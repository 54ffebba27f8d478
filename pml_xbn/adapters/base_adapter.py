"""What every adapter shares: the hook's signature, its guard clauses and its recorded numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.utils.module_with_records import ModuleWithRecords
from torch import Tensor

from .._dtypes import at_least_float32, widest
from ._rows import Rows
from .affine import Affine
from .moments import Moments, moments

# Whether to refuse, as a 0-d tensor that stays on its device, and the error's text if so.
Refusal = tuple[Tensor, Callable[[], str]]


class Given(NamedTuple):
    """What rows are adapted by: labels of theirs, the batch with its own, and moments as for a map."""

    labels: Tensor
    batch: Tensor
    batch_labels: Tensor
    of_memory: Moments
    target: Moments


class BaseAdapter(ModuleWithRecords):
    """From the moments of memory and batch to the map that takes the stored rows to where they would be now.

    A subclass implements :meth:`map` and, if it estimates the moments to adapt to from more than one batch,
    :meth:`estimate`. The memory applies the map and follows the moments itself. With fewer than two rows in
    the batch, or in memory, there are no moments and the rows stay as they are.

    Called, an adapter does the same to plain tensors.

    Args:
        collect_stats: record ``mean_distance``, the L2 distance between the means of memory and batch
            before adaptation, and ``std_ratio``, the mean over dimensions of σ[B]/σ[R]. Reading them
            makes a GPU wait for the host. Default: PML's ``COLLECT_STATS``.

    Example:
        >>> import torch
        >>> from pml_xbn.adapters import Affine
        >>> class HalfWay(BaseAdapter):
        ...     def map(self, memory, target):
        ...         return Affine(torch.ones_like(memory.std), (target.mean - memory.mean) / 2)
        >>> memory, batch = torch.tensor([[0.0], [2.0]]), torch.tensor([[5.0], [9.0]])
        >>> labels = torch.arange(2)
        >>> HalfWay()(memory, labels, batch, labels)
        tensor([[3.],
                [5.]])
    """

    needs_covariance = False  # whether the memory's coordinates mix dimensions

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_to_recordable_attributes(list_of_names=["mean_distance", "std_ratio"], is_stat=True)

    def map(self, memory: Moments, target: Moments) -> Affine:
        """The map that adapts all rows.

        Args:
            memory: moments of the stored rows, ``(d,)`` each, float64; σ is 0 in dimensions without spread.
            target: moments to adapt to, which :meth:`estimate` has returned.
        """
        raise NotImplementedError

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        """Moments to adapt to, given those of the batch, float64; the batch's own unless a subclass filters.

        It is called with every batch of two rows or more. What it keeps has to be assigned and not written
        to, so that a failed step can be taken back, and to be part of the state.
        """
        return batch

    def set_embedding_size(self, embedding_size: int) -> None:
        """Tells d when the adapter is registered on a memory: what is of that size has it from the start."""

    def refusal(self, labels: Tensor) -> Refusal | None:
        """Checks labels ``(b,)`` before anything is stored; None where any label will do."""
        return None

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
        wide = at_least_float32(memory)
        rows = Rows.of(wide, len(wide), len(wide), wide.dtype)
        with torch.no_grad():
            adapted = self.adapt(rows, memory_labels, batch, batch_labels)
        return None if adapted is rows else adapted.read(wide.dtype).to(memory.dtype)

    def adapt(self, rows: Rows, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Rows:
        """The rows of a memory, adapted; ``rows`` itself where they stay."""
        self.reset_stats()
        if len(batch) < 2:
            return rows
        of_batch = moments(widest(batch))
        target = self.estimate(of_batch, len(batch))
        if len(rows) < 2:
            return rows
        rows = (rows.with_matrices() if self.needs_covariance else rows).measured()
        of_memory = rows.moments()
        if self.collect_stats:
            self.mean_distance = (of_memory.mean - of_batch.mean).norm().item()
            self.std_ratio = of_memory.to(of_batch).scale.mean().item()
        return self._adapted(rows, Given(labels, batch, batch_labels, of_memory, target))

    def _adapted(self, rows: Rows, given: Given) -> Rows:
        affine = self.map(given.of_memory, given.target)
        return rows.adapted(rows.bounded(affine, given.of_memory))
