"""The base of all adapters: moments in, a map out, and the same maths on plain tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from .._arithmetic import widest
from .moments import Affine, GroupMoments, Groups, Moments, moments

# Whether the labels are refused, as a 0-d tensor that stays on its device, and the text of the error.
Refusal = tuple[Tensor, Callable[[], str]]


class BaseAdapter(nn.Module):
    """Turns the moments of memory and batch into the map that is applied to the stored rows.

    You want to subclass it when you have another idea of how stored rows should follow the model. A subclass
    implements :meth:`map`. It also implements :meth:`estimate` if the moments to adapt to come from more than
    one batch. The memory measures the moments and applies the map. With fewer than two rows in the batch, or
    in memory, there are no moments and the rows stay as they are.

    No rows go into an adapter, so it works with any memory. For plain tensors call it: see :meth:`forward`.

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

    # Whether rows of some groups get maps of their own, which `groups_of` and `maps_of_groups` then give.
    has_groups = False

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

        It may learn from the moments that it gets, as :meth:`estimate` may, if what it keeps is tensors that
        exist from the start and do not change their shape.

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

        It is called with every batch of two rows or more, but for those of the warm-up and of ``delay``. A
        subclass that keeps tensors from one batch to the next assigns new ones and never writes into the old
        ones, so that a failed step can be undone. It makes them part of its state (a buffer, or
        ``get_extra_state``), so that a run can resume.

        On a GPU it is also called with a batch that is not stored, as one with NaN, and in a graph during
        ``delay``. Then its state is given back. So keep state in tensors that exist from the start and do not
        change their shape: these are given back on the device. If anything else changes, such as a counter
        that is a Python number or state that is made of the first batch, the step waits for the GPU,
        ``torch.compile`` is refused, and within a CUDA graph what the batch left would stay. Changes within
        a list or a dict are not taken back.

        Args:
            batch: the moments of the batch, ``(d,)`` each, in float64.
            batch_size: its number of rows b.
        """
        return batch

    def groups_of(self, memory_labels: Tensor, batch_labels: Tensor) -> Groups:
        """Returns the group of every row of memory ``(n,)`` and batch ``(b,)``, if there are groups."""
        raise TypeError(f"{type(self).__name__} has no groups: derive it from GroupMomentMatching")

    def maps_of_groups(
        self,
        affine: Affine,
        memory: GroupMoments,
        batch: GroupMoments,
        target: Moments,
        num_rows: int | Tensor,
    ) -> Affine:
        """Returns the maps ``(g + 1, d)`` of the groups' rows, and last that of the rows of no group."""
        raise TypeError(f"{type(self).__name__} has no groups: derive it from GroupMomentMatching")

    def set_embedding_size(self, embedding_size: int) -> None:
        """Receives d when the adapter is registered on a memory, which may be its second, of another d."""

    def refusal(self, labels: Tensor) -> Refusal | None:
        """Checks labels ``(b,)`` before anything is stored. Returns None where every label is accepted."""
        return None

    @torch.no_grad()
    def forward(
        self, memory: Tensor, memory_labels: Tensor, batch: Tensor, batch_labels: Tensor
    ) -> Tensor | None:
        """Returns the rows ``(n, d)`` of a memory adapted to a batch ``(b, d)``, or None to leave them.

        Labels are integers, ``(n,)`` and ``(b,)``. Nothing is written to. A memory does not call this method:
        it measures its rows and applies the map itself.
        """
        if self.collect_stats:
            self.reset_stats()
        if len(batch) < 2:
            return None
        of_batch = moments(widest(batch))
        target = self.estimate(of_batch, len(batch))
        if len(memory) < 2:
            return None
        rows, limits = widest(memory), torch.finfo(memory.dtype)
        affine = self.checked_map(moments(rows), of_batch, target)
        adapted = self._adapted(rows, memory_labels, widest(batch), batch_labels, affine, target)
        return adapted.clamp(limits.min, limits.max).to(memory.dtype)

    def _adapted(
        self,
        rows: Tensor,
        labels: Tensor,
        batch: Tensor,
        batch_labels: Tensor,
        affine: Affine,
        target: Moments,
    ) -> Tensor:
        """Returns plain rows ``(n, d)`` after the map of all of them."""
        return affine.map(rows)

    def check_finite(self, method: str, affine: Affine) -> None:
        """Raises a ``ValueError`` for a map with NaN or inf, which names the method and the dimensions."""
        total = affine.scale + affine.shift
        if math.isfinite(total.sum().item()):
            return
        is_bad = ~torch.isfinite(total)
        if is_bad.any():
            dimensions = is_bad.nonzero()[:, -1].unique().tolist()
            raise ValueError(
                f"{type(self).__name__}.{method} gave NaN or inf in dimensions {dimensions}: return finite "
                "numbers, also where a standard deviation is 0 and where rows hold NaN, or build the memory "
                "with nonfinite='ignore', which leaves such dimensions as they are"
            )

    def checked_map(self, memory: Moments, batch: Moments, target: Moments) -> Affine:
        """Returns the map of all rows, and records what PML's logging is to see.

        Args:
            memory: the moments of the stored rows.
            batch: those of the batch.
            target: the moments to adapt to, which :meth:`estimate` has made of them.

        Raises:
            TypeError: :meth:`map` returned no scale and shift per dimension.
        """
        if self.collect_stats:
            self.mean_distance = (memory.mean - batch.mean).norm().item()
            self.std_ratio = memory.affine_to(batch).scale.mean().item()
        affine, shape = self.map(memory, target), batch.mean.shape
        parts = tuple(affine) if isinstance(affine, Affine) else ()
        if not (parts and all(isinstance(part, Tensor) and part.shape == shape for part in parts)):
            found: Any = [tuple(part.shape) if isinstance(part, Tensor) else part for part in parts]
            found = found or f"a {type(affine).__name__}"
            raise TypeError(
                f"{type(self).__name__}.map returned {found}: return Affine(scale, shift), which makes "
                f"scale * z + shift of every row z, one number per dimension, {tuple(shape)} each"
            )
        return affine
