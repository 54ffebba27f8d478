"""A test that any adapter can be put through."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .adapters.affine import Affine
from .adapters.base_adapter import BaseAdapter
from .adapters.moments import Moments

_D, _MEMORY_SIZE, _NUM_LABELS = 4, 20, 4
_BATCH_SIZES = (5, 1, 2, 8, 3, 20, 1, 6, 2)


def check_adapter(adapter: nn.Module, *, num_steps: int = 200, tolerance: float = 1e-4) -> None:
    """Runs copies of an adapter through a memory, and against plain float64 rows.

    The data drifts, its mean lies tens of spreads from zero, and its batches have one row, two rows, as many
    as the memory, and sizes with which the memory wraps round. Labels are 0 to 3.

    After every step the rows of the memory have to be those of a replay, which calls a copy of the
    adapter with rows and batch in float64. The adapter must have written neither to what it was given nor
    to a tensor that it held before: what it keeps has to be assigned, so that a step can be taken back.
    The state of half way, loaded into a new memory, has to continue bit for bit.

    Args:
        adapter: a :class:`BaseAdapter`, or any module that is a memory hook. It is copied and left as it is.
        num_steps: how many batches, at least 2.
        tolerance: the largest difference allowed, as a share of the spread of the rows in the dimension.

    Raises:
        AssertionError: the adapter fails; with the step, what was found, and what it may mean.

    Example:
        >>> class HalfWay(BaseAdapter):
        ...     def map(self, memory, target):
        ...         return Affine(torch.ones_like(memory.std), (target.mean - memory.mean) / 2)
        >>> check_adapter(HalfWay())
    """
    memory, resumed = _memory_with(adapter), _memory_with(adapter)
    replay = _Replay(_watched(copy.deepcopy(adapter)))
    if isinstance(replay.adapter, BaseAdapter):
        replay.adapter.set_embedding_size(_D)
    half_way = num_steps // 2
    for step, (batch, labels) in enumerate(_steps(num_steps)):
        if step == half_way:
            _resume(resumed, memory.state_dict())
        before = _clones((batch, labels))
        memory(batch, labels)
        _check(_are_equal((batch, labels), before), step, "the adapter has written to the batch")
        replay.step(batch.double(), labels, step)
        rows, row_labels = (x[: memory.num_rows] for x in (memory.embedding_memory, memory.label_memory))
        _check(rows.dtype == torch.float32, step, f"rows are read in {rows.dtype}")
        _check(row_labels.tolist() == replay.labels, step, "the labels of the rows have changed")
        _check_close(rows, replay.rows, step, tolerance)
        if step >= half_way:
            resumed(batch, labels)
            _check(
                torch.equal(resumed.embedding_memory, memory.embedding_memory),
                step,
                f"rows differ from those of a memory that has loaded the state of step {half_way}: "
                "something that the map depends on is not in state_dict(); make it a buffer, or part of "
                "get_extra_state()",
            )


class _Replay:
    """A queue of rows in float64."""

    def __init__(self, adapter: nn.Module) -> None:
        self.adapter = adapter
        self.rows = torch.zeros(0, _D, dtype=torch.float64)
        self.labels: list[int] = []
        self.position = 0

    def step(self, batch: Tensor, labels: Tensor, step: int) -> None:
        """Adapts the rows, and puts the batch in the place of the oldest ones."""
        oldest = self.position % max(len(self.rows), 1)  # adapters of plain rows take the oldest ones first
        memory_labels = torch.tensor(self.labels, dtype=torch.int64).roll(-oldest)
        inputs = self.rows.roll(-oldest, dims=0), memory_labels, batch, labels
        held = list(_tensors([vars(module) for module in self.adapter.modules()]))
        before, held_before = _clones(inputs), _clones(held)
        with torch.no_grad():
            adapted = self.adapter(*inputs)
        _check(_are_equal(inputs, before), step, "the adapter has written to its input: return new tensors")
        _check(
            _are_equal(held, held_before),
            step,
            "the adapter has written to a tensor that it held before the step, such as its target: assign "
            "a new one, so that the step can be taken back",
        )
        if adapted is not None:
            is_alike = (adapted.shape, adapted.dtype) == (self.rows.shape, self.rows.dtype)
            found = f"{adapted.dtype} of shape {tuple(adapted.shape)}"
            _check(is_alike, step, f"it returned {found} for {self.rows.dtype} of {tuple(self.rows.shape)}")
            self.rows = adapted.roll(oldest, dims=0)
        rows = list(self.rows)
        for row, label in zip(batch, labels.tolist(), strict=True):
            rows[self.position : self.position + 1] = [row]
            self.labels[self.position : self.position + 1] = [label]
            self.position = (self.position + 1) % _MEMORY_SIZE
        self.rows = torch.stack(rows)


def _memory_with(adapter: nn.Module) -> Any:
    from pytorch_metric_learning.losses import ContrastiveLoss

    from .losses import AdaptiveCrossBatchMemory

    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), _D, _MEMORY_SIZE)
    memory.register_memory_hook(_watched(copy.deepcopy(adapter)))
    return memory


def _watched(adapter: nn.Module) -> nn.Module:
    """The adapter with a map that fails if it writes to what it is given."""
    if not isinstance(adapter, BaseAdapter):
        return adapter
    of_adapter = adapter.map

    def checked(memory: Moments, target: Moments) -> Affine:
        before = _clones((*memory, *target))
        affine = of_adapter(memory, target)
        if not _are_equal((*memory, *target), before):
            raise AssertionError(f"{type(adapter).__name__}.map has written to the moments that it was given")
        return affine

    adapter.map = checked  # type: ignore[method-assign]
    return adapter


def _resume(memory: nn.Module, state: dict[str, Any]) -> None:
    """Loads a state that has been in a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    memory.load_state_dict(torch.load(file, weights_only=True))


def _steps(num_steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches, float32, and labels. The mean walks by a tenth of the spread a step."""
    random = torch.Generator().manual_seed(0)
    for step in range(num_steps):
        b = _BATCH_SIZES[step % len(_BATCH_SIZES)]
        labels = torch.randint(0, _NUM_LABELS, (b,), generator=random)
        mean = 20 + step / 10 * torch.tensor([1.0, -1.0, 0.5, 0.0])
        spread = 1 + 0.5 * math.sin(step / 10)
        yield mean + spread * (torch.randn(b, _D, generator=random) + labels.unsqueeze(1) / 2), labels


def _check_close(rows: Tensor, expected: Tensor, step: int, tolerance: float) -> None:
    _check(bool(torch.isfinite(rows).all()), step, "rows are NaN or inf")
    spread = expected.std(dim=0) if len(expected) > 1 else torch.ones_like(expected[0])
    # Rows that have become equal have no spread; what is read in float32 is rounded wherever it lies.
    rounding = 4 * torch.finfo(rows.dtype).eps * expected.abs().amax(dim=0)
    difference = ((rows - expected).abs() - rounding).clamp(min=0) / spread.clamp(min=1e-30)
    largest = difference.max().item()
    _check(
        largest <= tolerance,
        step,
        f"rows differ from the float64 replay by {largest:.3g} of their spread: does the map depend on "
        "anything but the moments and the state of the adapter, such as the number of calls or the order, "
        "or divide by a spread that may be zero?",
    )


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _clones(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [x.clone() for x in tensors]


def _are_equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def _check(is_right: bool, step: int, message: str) -> None:
    if not is_right:
        raise AssertionError(f"step {step}: {message}")
