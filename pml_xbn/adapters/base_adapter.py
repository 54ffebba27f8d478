"""What every adapter shares: the hook's signature, its guard clauses and its recorded numbers."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from .._dtypes import widest
from .affine import Affine
from .moments import Moments, group_moments, moments

# Whether to refuse, as a 0-d tensor that stays on its device, and the error's text if so.
Refusal = tuple[Tensor, Callable[[], str]]


class PlainRows:
    """Rows ``(n, d)`` of a plain tensor, float64. The rows of a memory have the same methods for adapters."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def moments(self) -> Moments:
        """Returns the moments of all rows, two or more, in float64."""
        return moments(self.values)

    def adapted(self, affine: Affine) -> PlainRows:
        """Returns the rows after a map of all of them."""
        return PlainRows(affine.map(self.values))

    def group_moments(self, slots: Tensor, num_groups: int) -> tuple[Tensor, Moments]:
        """Returns counts ``(g, 1)`` and moments ``(g, d)`` of the rows of every slot ``(n,)`` below g."""
        return group_moments(self.values, slots, num_groups)

    def adapted_in_groups(
        self, slots: Tensor, is_adapted: Tensor, group_maps: Affine, other_map: Affine | None
    ) -> PlainRows:
        """Returns the rows after a map of all of them, but the rows of some groups after one of their own.

        Args:
            slots: ``(n,)``, the group of every row in [0, g]; slot g is of no group.
            is_adapted: which of the groups take their map, ``(g, 1)`` bool.
            group_maps: maps of the groups, ``(g, d)``.
            other_map: map of all other rows; None: they stay.
        """
        others = self.values if other_map is None else other_map.map(self.values)
        groups = slots.clamp(max=len(is_adapted) - 1)
        own = torch.addcmul(group_maps.shift[groups], self.values, group_maps.scale[groups])
        return PlainRows(torch.where(is_adapted[groups] & (slots == groups).unsqueeze(1), own, others))


class BaseAdapter(nn.Module):
    """From the moments of memory and batch to the map that adapts the stored rows.

    A subclass implements :meth:`map` and, if it estimates the moments to adapt to from more than one batch,
    :meth:`estimate`. The memory applies the map and follows the moments itself. With fewer than two rows in
    the batch, or in memory, there are no moments and the rows stay as they are.

    Called, an adapter does the same to plain tensors.

    Args:
        collect_stats: record ``mean_distance``, the L2 distance between the means of memory and batch
            before adaptation, and ``std_ratio``, the mean over dimensions of σ[B]/σ[R], for PML's logging.
            Reading them makes a GPU wait for the host.

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
        """Returns the map that adapts all rows.

        Args:
            memory: moments of the stored rows, ``(d,)`` each, float64; σ is 0 in dimensions without spread.
            target: moments to adapt to, which :meth:`estimate` has returned.
        """
        raise TypeError(
            f"{type(self).__name__} has no map: define map(memory, target) -> Affine(scale, shift)"
        )

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
        """Returns the adapted rows, or None to leave them as they are.

        Args:
            memory: occupied rows of the memory, ``(n, d)``; not modified.
            memory_labels: ``(n,)``, integers.
            batch: detached rows about to be enqueued, ``(b, d)``.
            batch_labels: ``(b,)``, integers.
        """
        rows, limits = PlainRows(widest(memory)), torch.finfo(memory.dtype)
        with torch.no_grad():
            adapted = self.adapt(rows, memory_labels, batch, batch_labels)
        if adapted is rows:
            return None
        values: Tensor = adapted.values.clamp(limits.min, limits.max).to(memory.dtype)
        return values

    def adapt(self, rows: Any, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Any:
        """Returns the adapted rows; ``rows`` itself where they stay.

        Args:
            rows: those of a memory, or :class:`PlainRows`.
            labels, batch, batch_labels: as for :meth:`forward`.
        """
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
        return self._adapted(rows, labels, batch, batch_labels, memory_moments, target)

    def _adapted(
        self, rows: Any, labels: Tensor, batch: Tensor, batch_labels: Tensor, memory: Moments, to: Moments
    ) -> Any:
        """Returns the rows, of these moments, adapted to others."""
        affine, shape = self.map(memory, to), memory.mean.shape
        if not isinstance(affine, Affine):
            raise TypeError(
                f"{type(self).__name__}.map returned a {type(affine).__name__}: return Affine(scale, shift), "
                "of which the memory makes scale * z + shift of every row z"
            )
        if affine.scale.shape != shape or affine.shift.shape != shape:
            raise ValueError(
                f"{type(self).__name__}.map returned shapes {[tuple(x.shape) for x in affine]}: return a "
                f"scale and a shift of shape {tuple(shape)}, one number per dimension"
            )
        return rows.adapted(affine)
