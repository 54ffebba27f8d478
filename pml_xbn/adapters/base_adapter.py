"""The base of all adapters: the signature of the hook, its guard clauses and the numbers that it records."""

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

# Whether the labels are refused, as a 0-d tensor that stays on its device, and the text of the error.
Refusal = tuple[Tensor, Callable[[], str]]


@dataclass
class _PlainRows:
    """Rows ``(n, d)`` of a plain tensor, in float64, with the methods that a memory's rows have too."""

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
    """Turns the moments of memory and batch into the map that is applied to the stored rows.

    You want to subclass it when you have another idea of how stored rows should follow the model. A subclass
    implements :meth:`map`. It also implements :meth:`estimate` if the moments to adapt to come from more than
    one batch. The memory measures the moments and applies the map. With fewer than two rows in the batch, or
    in memory, there are no moments and the rows stay as they are.

    An adapter can also be called with plain tensors: see :meth:`forward`.

    Args:
        collect_stats: whether to record ``mean_distance`` and ``std_ratio`` for PML's logging (default
            False); docs/diagnostics.md says what they mean. Recording makes every step wait for the GPU.

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
        """Tells PML's logging to record these attributes, if ``collect_stats``; they are 0 until set."""
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
            memory: the moments of the stored rows, ``(d,)`` each, in float64. A standard deviation is 0 in
                dimensions without spread.
            target: the moments to adapt to, which :meth:`estimate` has returned, in the same form.

        Returns:
            Scale and shift, ``(d,)`` each.
        """
        name = type(self).__name__
        raise TypeError(f"{name} has no map: define map(memory, target) -> Affine(scale, shift)")

    def estimate(self, batch: Moments, batch_size: int) -> Moments:
        """Returns the moments to adapt to. By default these are the moments of the batch.

        It is called with every batch of two rows or more. A subclass that keeps tensors from one batch to
        the next assigns new ones and never writes into the old ones, so that a failed step can be undone. It
        makes them part of its state (a buffer, or ``get_extra_state``), so that a run can resume.

        Args:
            batch: the moments of the batch, ``(d,)`` each, in float64.
            batch_size: its number of rows b.
        """
        return batch

    def set_embedding_size(self, embedding_size: int) -> None:
        """Receives d when the adapter is registered on a memory."""

    def refusal(self, labels: Tensor) -> Refusal | None:
        """Checks labels ``(b,)`` before anything is stored. Returns None where every label is accepted."""
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

    def adapt(
        self,
        rows: Any,
        labels: Tensor,
        batch: Tensor,
        batch_labels: Tensor,
        *,
        is_map_checked: bool = False,
    ) -> Any:
        """Returns the adapted rows, of a memory or a plain tensor; ``rows`` itself where they stay.

        If the maps are checked, one with NaN or inf is a ``ValueError``. For that a GPU has to wait.
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
        affine, shape = self.map(memory_moments, target), batch.shape[1:]
        parts = tuple(affine) if isinstance(affine, Affine) else ()
        if not (parts and all(isinstance(part, Tensor) and part.shape == shape for part in parts)):
            found: Any = [tuple(part.shape) if isinstance(part, Tensor) else part for part in parts]
            found = found or f"a {type(affine).__name__}"
            raise TypeError(
                f"{type(self).__name__}.map returned {found}: return Affine(scale, shift), which makes "
                f"scale * z + shift of every row z, one number per dimension, {tuple(shape)} each"
            )
        if is_map_checked:
            self.check_finite("map", affine)
        return self._adapted(rows, labels, batch, batch_labels, affine, target, is_map_checked)

    def check_finite(self, method: str, affine: Affine) -> None:
        """Raises a ``ValueError`` for a map with NaN or inf, which names the method and the dimensions."""
        is_bad = ~torch.isfinite(affine.scale + affine.shift)
        if is_bad.any():
            dimensions = is_bad.nonzero()[:, -1].unique().tolist()
            raise ValueError(
                f"{type(self).__name__}.{method} gave NaN or inf in dimensions {dimensions}: return finite "
                "numbers, also where a standard deviation is 0 and where rows hold NaN, or build the memory "
                "with nonfinite='ignore', which leaves such dimensions as they are"
            )

    def _adapted(
        self,
        rows: Any,
        labels: Tensor,
        batch: Tensor,
        batch_labels: Tensor,
        affine: Affine,
        target: Moments,
        is_map_checked: bool,
    ) -> Any:
        """Returns the rows after the map of all of them."""
        return rows.adapted(affine)

    def take_part(self, rows: Any, labels: Tensor, batch: Tensor, batch_labels: Tensor) -> Any:
        """Takes part in the sums over ranks that :meth:`adapt` computes, and adapts no rows.

        A rank that has failed calls it, so that the other ranks do not wait for its part of the sums.
        """
        if len(batch) < 2 or len(rows) < 2:
            return rows
        rows.moments()
        return self._take_part(rows, labels, batch_labels)

    def _take_part(self, rows: Any, labels: Tensor, batch_labels: Tensor) -> Any:
        """Takes part in the sums that follow after the map of all rows is known."""
        return replace(rows)  # a copy that has forgotten its moments, as adapted rows have
