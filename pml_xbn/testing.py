"""A test that any adapter can be put through."""

from __future__ import annotations

import copy
import functools
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

from ._checks import check_integer
from .adapters.base_adapter import BaseAdapter
from .adapters.moment_matching import MomentMatching
from .adapters.moments import Affine, Moments, moments
from .losses import AdaptiveCrossBatchMemory

_MEMORY_SIZE, _NUM_LABELS = 20, 4
_BATCH_SIZES = (5, 1, 2, 8, 3, 20, 1, 6, 2)


def check_adapter(
    adapter: nn.Module,
    *,
    embedding_size: int = 4,
    num_steps: int = 200,
    tolerance: float = 1e-4,
    moments_after: Callable[[Moments, Moments], Moments] | None = None,
) -> None:
    """Runs copies of an adapter through a memory, and against plain float64 rows.

    The data drifts, its mean lies tens of spreads from zero, and its batches have one row, two rows, as many
    as the memory, and sizes with which the memory wraps round. Labels are 0 to 3.

    After every step the rows of the memory have to be those of a replay, which calls a copy of the
    adapter with rows and batch in float64. The adapter must have written neither to what it was given nor
    to a tensor that it held before: what it keeps has to be assigned, so that a step can be taken back.
    The state of half way, loaded into a new memory, has to continue bit for bit.

    A map of a :class:`BaseAdapter` has to take the mean of the rows towards the mean that it adapts to. A map
    of a :class:`MomentMatching` has to give the rows the moments that it adapts to.

    Args:
        adapter: a :class:`BaseAdapter`, or any module that is a memory hook. It is copied and left as it is.
        embedding_size: d of the rows. Pass the one that the adapter is made for, if it is made for one. What
            is raised names it.
        num_steps: how many batches, at least 2.
        tolerance: the largest difference allowed, as a fraction of the rows' spread in the dimension.
        moments_after: returns the moments that the adapted rows have to have, by their own before and those
            that they are adapted to. Without an ``estimate`` the latter are the moments of the batch.

    Raises:
        ValueError: fewer than two steps, or no dimension.
        TypeError: the adapter is no module, or its map returns something other than an ``Affine`` of tensors.
        AssertionError: the adapter fails; with the step, what was found, and what it may mean.

    Example:
        >>> class HalfWay(BaseAdapter):
        ...     def map(self, memory, target):
        ...         return Affine(torch.ones_like(memory.std), (target.mean - memory.mean) / 2)
        >>> def half_way(memory, target):
        ...     return Moments((memory.mean + target.mean) / 2, memory.std)
        >>> check_adapter(HalfWay(), moments_after=half_way)
    """
    check_integer("num_steps", num_steps, at_least=2)
    check_integer("embedding_size", embedding_size, at_least=1)
    if not isinstance(adapter, nn.Module):
        found = (
            f"the class {adapter.__name__}" if isinstance(adapter, type) else f"a {type(adapter).__name__}"
        )
        raise TypeError(
            f"adapter is {found}: pass an instance of a BaseAdapter, or of a torch.nn.Module whose forward "
            "takes (memory, memory_labels, batch, batch_labels)"
        )
    if moments_after is None and isinstance(adapter, MomentMatching):
        moments_after = functools.partial(_matched_moments, adapter.match_std)
    check = _MomentCheck(moments_after, tolerance)
    try:
        with torch.device("cpu"):
            _check_steps(adapter, check, embedding_size, num_steps)
    except (AssertionError, TypeError) as error:
        error.args = (f"{error} (checked with embedding_size={embedding_size})",)
        raise


def _check_steps(adapter: nn.Module, check: _MomentCheck, embedding_size: int, num_steps: int) -> None:
    """Runs the adapter in a memory, in a replay, and in a memory that is resumed half way."""
    tolerance = check.tolerance
    memory, resumed = _memory_with(adapter, embedding_size), _memory_with(adapter, embedding_size)
    replay = _Replay(_watched(copy.deepcopy(adapter).cpu(), check), check, embedding_size)
    if isinstance(replay.adapter, BaseAdapter):
        replay.adapter.set_embedding_size(embedding_size)
    half_way = num_steps // 2
    for step, (batch, labels) in enumerate(_steps(num_steps, embedding_size)):
        if step == half_way:
            _resume(resumed, memory.state_dict())
        before = _clones((batch, labels))
        with _named_errors(step, memory.num_rows, len(batch)):
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


@contextmanager
def _named_errors(step: int, num_rows: int, batch_size: int) -> Iterator[None]:
    """Turns an error of the adapter into one that says what it was called with."""
    try:
        yield
    except (AssertionError, TypeError) as error:
        raise type(error)(f"step {step}: {error}") from error
    except Exception as error:
        remedy = "" if num_rows else ": hooks are first called without rows, (0, d), and return None then"
        raise AssertionError(
            f"step {step}: with {num_rows} rows in memory and {batch_size} in the batch it raised "
            f"{type(error).__name__}: {error}{remedy}"
        ) from error


def _matched_moments(match_std: bool, memory: Moments, target: Moments) -> Moments:
    has_target_std = (memory.std > 0) & match_std
    return Moments(target.mean, torch.where(has_target_std, target.std, memory.std))


class _MomentCheck:
    """Compares the moments of adapted rows with those that are promised.

    Args:
        moments_after: returns the promised moments, given those before and the target; None promises nothing.
        tolerance: the largest difference allowed, as a fraction of the target's spread.
    """

    def __init__(self, moments_after: Callable[[Moments, Moments], Moments] | None, tolerance: float) -> None:
        self.moments_after, self.tolerance = moments_after, tolerance

    def check_map(self, affine: Affine, memory: Moments, target: Moments) -> None:
        """Checks a map, whose result has moments that follow from those before."""
        found = Moments(affine.scale * memory.mean + affine.shift, affine.scale.abs() * memory.std)
        before, after = ((x.mean - target.mean).norm() for x in (memory, found))
        if after > before * (1 + self.tolerance):
            raise AssertionError(
                f"the map takes the mean of the rows away from the target: their distance was {before:.3g} "
                f"and is {after:.3g}. scale * z + shift is applied to the rows of the memory, so "
                "`memory.affine_to(target)` is XBN's map; `target.affine_to(memory)` is on the wrong side"
            )
        self.compare(found, memory, target)

    def compare(self, found: Moments, memory: Moments, target: Moments) -> None:
        """Checks the moments of the adapted rows."""
        if self.moments_after is None:
            return
        for name, value, expected in zip(
            found._fields, found, self.moments_after(memory, target), strict=True
        ):
            spread = target.std.clamp(min=1e-30) + torch.finfo(torch.float32).eps * target.mean.abs()
            largest = ((value - expected).abs() / spread).max().item()
            if not largest <= self.tolerance:
                raise AssertionError(
                    f"the {name} of the adapted rows differs from the promised one by {largest:.3g} of the "
                    "target's spread: does the map scale before it shifts, scale * z + shift?"
                )


class _Replay:
    """A queue of rows in float64."""

    def __init__(self, adapter: nn.Module, check: _MomentCheck, embedding_size: int) -> None:
        self.adapter, self.check = adapter, check
        self.rows = torch.zeros(0, embedding_size, dtype=torch.float64)
        self.labels: list[int] = []
        self.position = 0

    def step(self, batch: Tensor, labels: Tensor, step: int) -> None:
        """Adapts the rows, and puts the batch in the place of the oldest ones."""
        oldest = self.position % max(len(self.rows), 1)  # adapters of plain rows take the oldest ones first
        memory_labels = torch.tensor(self.labels, dtype=torch.int64).roll(-oldest)
        inputs = self.rows.roll(-oldest, dims=0), memory_labels, batch, labels
        held = list(_tensors([vars(module) for module in self.adapter.modules()]))
        before, held_before = _clones(inputs), _clones(held)
        with torch.no_grad(), _named_errors(step, len(self.rows), len(batch)):
            adapted = self.adapter(*inputs)
            if (
                adapted is not None
                and not isinstance(self.adapter, BaseAdapter)
                and min(map(len, inputs)) > 1
            ):
                self.check.compare(*map(moments, (adapted, inputs[0], batch)))
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


def _memory_with(adapter: nn.Module, embedding_size: int) -> AdaptiveCrossBatchMemory:
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), embedding_size, _MEMORY_SIZE)
    memory.register_memory_hook(copy.deepcopy(adapter).cpu())
    return memory


def _watched(adapter: nn.Module, check: _MomentCheck) -> nn.Module:
    """Returns the adapter with a map that is checked, and that fails if it writes to its arguments."""
    if not isinstance(adapter, BaseAdapter):
        return adapter
    adapter_map = adapter.map

    def checked(memory: Moments, target: Moments) -> Affine:
        before = _clones((*memory, *target))
        affine = adapter_map(memory, target)
        if not _are_equal((*memory, *target), before):
            raise AssertionError(f"{type(adapter).__name__}.map has written to the moments that it was given")
        if isinstance(affine, Affine):
            check.check_map(affine, memory, target)
        return affine

    adapter.map = checked  # type: ignore[method-assign]
    return adapter


def _resume(memory: nn.Module, state: dict[str, Any]) -> None:
    """Loads a state that has been in a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    memory.load_state_dict(torch.load(file, weights_only=True))


def _steps(num_steps: int, embedding_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields batches, float32, and labels. The mean walks by a tenth of the spread a step."""
    random = torch.Generator().manual_seed(0)
    velocity = torch.tensor([1.0, -1.0, 0.5, 0.0]).repeat(-(-embedding_size // 4))[:embedding_size]
    for step in range(num_steps):
        b = _BATCH_SIZES[step % len(_BATCH_SIZES)]
        labels = torch.randint(0, _NUM_LABELS, (b,), generator=random)
        mean = 20 + step / 10 * velocity
        spread = 1 + 0.5 * math.sin(step / 10)
        yield (
            mean + spread * (torch.randn(b, embedding_size, generator=random) + labels.unsqueeze(1) / 2),
            labels,
        )


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
    """Yields all tensors in containers."""
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
    """Returns whether numbers are the same, NaN among them."""
    pairs = zip(first, second, strict=True)
    return all(x.shape == y.shape and bool(((x == y) | (x.isnan() & y.isnan())).all()) for x, y in pairs)


def _check(is_right: bool, step: int, message: str) -> None:
    if not is_right:
        raise AssertionError(f"step {step}: {message}")
