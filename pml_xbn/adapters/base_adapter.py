"""What every adapter shares: the hook's signature, its guard clauses and its recorded numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from .._arithmetic import widest
from .affine import Affine
from .moments import Moments, group_moments, moments

# Whether to refuse, as a 0-d tensor that stays on its device, and the error's text if so.
Refusal = tuple[Tensor, Callable[[], str]]


@dataclass
class _PlainRows:
    """Rows ``(n, d)`` of a plain tensor, in float64, with what adapters ask of the rows of a memory."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def moments(self) -> Moments:
        return moments(self.values)

    def group_moments(self, slots: Tensor, num_groups: int) -> tuple[Tensor, Moments]:
        return group_moments(self.values, slots, num_groups)

    def adapted(self, affine: Affine) -> _PlainRows:
        return _PlainRows(affine.map(self.values))

    def adapted_in_groups(self, maps: Affine, slots: Tensor, other_map: Affine) -> _PlainRows:
        return self.adapted(Affine(maps.scale[slots], maps.shift[slots]))


class BaseAdapter(nn.Module):
    """From the moments of memory and batch to the map that adapts the stored rows.

    A subclass implements :meth:`map` and, if it estimates the moments to adapt to from more than one batch,
    :meth:`estimate`. The memory applies the map and follows the moments itself. With fewer than two rows in
    the batch, or in memory, there are no moments and the rows stay as they are. Called, an adapter does the
    same to plain tensors.

    Args:
        collect_stats: record ``mean_distance`` and ``std_ratio`` for PML's logging; see docs/diagnostics.md.

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

    def __init__(self, *, collect_stats: bool = False) -> None:
        super().__init__()
        self.collect_stats = collect_stats
        self._record_these_stats: list[str] = []  # where PML's logging looks for names
        self.record_stats("mean_distance", "std_ratio")

    def record_stats(self, *names: str) -> None:
        """Names attributes that PML's logging records, numbers that are 0 until set, if ``collect_stats``."""
        if self.collect_stats:
            self._record_these_stats += names
            self.reset_stats()

    def extra_repr(self) -> str:
        options = {name: getattr(self, name, None) for name in signature(type(self)).parameters}
        return ", ".join(f"{name}={x}" for name, x in options.items() if isinstance(x, float | int))

    def reset_stats(self) -> None:
        for name in self._record_these_stats:
            setattr(self, name, 0)

    def map(self, memory: Moments, target: Moments) -> Affine:
        """Returns the map that adapts all rows, given their moments and those that :meth:`estimate` returns.

        All are ``(d,)`` and float64; σ is 0 in dimensions without spread.
        """
        name = type(self).__name__
        raise TypeError(f"{name} has no map: define map(memory, target) -> Affine(scale, shift)")

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        """Returns the moments to adapt to, given those of the batch, float64: the batch's own by default.

        It is called with every batch of two rows or more. What it keeps has to be assigned and not written
        to, so that a failed step can be undone, and to be part of the state.
        """
        return batch

    def set_embedding_size(self, embedding_size: int) -> None:
        """Receives d when the adapter is registered on a memory."""

    def refusal(self, labels: Tensor) -> Refusal | None:
        """Checks labels ``(b,)`` before anything is stored; None where any label will do."""
        return None

    def forward(
        self, memory: Tensor, memory_labels: Tensor, batch: Tensor, batch_labels: Tensor
    ) -> Tensor | None:
        """Returns the rows ``(n, d)`` of a memory adapted to a batch ``(b, d)``, or None to leave them.

        Labels are integers, ``(n,)`` and ``(b,)``. Nothing is written to.
        """
        rows, limits = _PlainRows(widest(memory)), torch.finfo(memory.dtype)
        with torch.no_grad():
            adapted = self.adapt(rows, memory_labels, batch, batch_labels)
        if adapted is rows:
            return None
        values: Tensor = adapted.values.clamp(limits.min, limits.max).to(memory.dtype)
        return values

    def adapt(self, rows: Any, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Any:
        """Returns the adapted rows, of a memory or a plain tensor; ``rows`` itself where they stay."""
        if self.collect_stats:
            self.reset_stats()
        if len(batch) < 2:
            return rows
        batch_moments = moments(widest(batch))
        target = self.estimate(batch_moments, len(batch))
        if len(rows) < 2:
            return rows
        memory_moments = rows.moments()
        if self.collect_stats:
            self.mean_distance = (memory_moments.mean - batch_moments.mean).norm().item()
            self.std_ratio = memory_moments.to(batch_moments).scale.mean().item()
        affine, shape = self.map(memory_moments, target), batch.shape[1:]
        parts = tuple(affine) if isinstance(affine, Affine) else ()
        if not (parts and all(isinstance(part, Tensor) and part.shape == shape for part in parts)):
            found: Any = [tuple(part.shape) if isinstance(part, Tensor) else part for part in parts]
            found = found or f"a {type(affine).__name__}"
            raise TypeError(
                f"{type(self).__name__}.map returned {found}: return Affine(scale, shift), which makes "
                f"scale * z + shift of every row z, one number per dimension, {tuple(shape)} each"
            )
        return self._adapted(rows, labels, batch, batch_labels, affine, target)

    def _adapted(
        self, rows: Any, labels: Tensor, batch: Tensor, batch_labels: Tensor, affine: Affine, target: Moments
    ) -> Any:
        """Returns the rows after the map of all of them."""
        return rows.adapted(affine)

    def attend(self, rows: Any, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Any:
        """Takes part in what :meth:`adapt` computes of rows that are spread over ranks, and adapts none.

        A rank calls it that has failed, so that the others need not wait for it.
        """
        if len(batch) < 2 or len(rows) < 2:
            return rows
        rows.moments()
        return self._attend(rows, labels, batch_labels)

    def _attend(self, rows: Any, labels: Tensor, batch_labels: Tensor) -> Any:
        """Does so after the map of all rows is known."""
        return replace(rows)  # of which nothing is known yet, as of those that have been adapted
