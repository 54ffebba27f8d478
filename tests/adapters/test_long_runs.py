"""Rows that are adapted for hundreds of steps, against the equations replayed in float64.

The number of steps is that of the environment variable PML_XBN_DRIFT_STEPS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss

from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper

STEPS = int(os.environ.get("PML_XBN_DRIFT_STEPS", "600"))
D, NUM_CLASSES = 4, 4
SUPERCLASSES = [0, 1, 1, 0]
EPS = float(np.finfo(np.float32).eps)
Array = np.ndarray
Replay = Callable[[Array, Array, Array, Array], Array]


def match(rows: Array, of_rows: tuple[Array, Array], target: tuple[Array, Array]) -> Array:
    """Eq. 6; a spread of less than 8 rounding errors of a float32 mean is none."""
    (mean, std), (new_mean, new_std) = of_rows, target
    has_spread = std > 8 * EPS * np.abs(mean)
    scale = np.where(has_spread, new_std / np.where(has_spread, std, 1.0), 1.0)
    return (rows - mean) * scale + new_mean


def mean_std(rows: Array) -> tuple[Array, Array]:
    return rows.mean(axis=0), rows.std(axis=0, ddof=1)


class FilteredReplay:
    """Eq. 6 with a gain: 1 is XBN, 1 − m a moving average with momentum m, Algorithm 1's is AXBN."""

    def __init__(self, gain: Callable[[int], float] = lambda _: 1.0, match_std: bool = True) -> None:
        self.gain, self.match_std = gain, match_std
        self.estimate: tuple[Array, Array] | None = None

    def __call__(self, memory: Array, _: Array, batch: Array, __: Array) -> Array:
        new, gain = mean_std(batch), self.gain(len(batch))
        old = self.estimate or new
        self.estimate = tuple(o + gain * (n - o) for o, n in zip(old, new, strict=True))
        if len(memory) < 2:
            return memory
        mean, std = self.estimate
        of_memory = mean_std(memory)
        return match(memory, of_memory, (mean, std if self.match_std else of_memory[1]))


def kalman_gain(q: float, r: float, p: float, interval: int) -> Callable[[int], float]:
    calls, k = 0, 0.0

    def gain(batch_size: int) -> float:
        nonlocal calls, k, p
        if calls % interval == 0:
            k = (p + q) / (p + q + r / batch_size)
            p = (1 - k) * (p + q)
        calls += 1
        return k

    return gain


def group_replay(group_of: list[int]) -> Replay:
    """Eq. 4.3 and 4.4 with both lambdas 0.5, where half of every target is the group's."""
    groups = np.array(group_of)

    def adapt(memory: Array, labels: Array, batch: Array, batch_labels: Array) -> Array:
        if len(memory) < 2:
            return memory
        whole = mean_std(batch)
        out = match(memory, mean_std(memory), whole)
        for group in np.unique(groups):
            mine, theirs = groups[labels] == group, groups[batch_labels] == group
            if mine.sum() > 1 and theirs.sum() > 1:
                blend = tuple((w + own) / 2 for w, own in zip(whole, mean_std(batch[theirs]), strict=True))
                out[mine] = match(memory[mine], mean_std(memory[mine]), blend)
        return out

    return adapt


CASES: dict[str, tuple[Callable[..., Any], Callable[[], Replay]]] = {
    "xbn": (XBNWrapper, FilteredReplay),
    "centre": (
        lambda *a, **kw: XBNWrapper(*a, match_std=False, **kw),
        lambda: FilteredReplay(match_std=False),
    ),
    "ema": (lambda *a, **kw: XBNWrapper(*a, momentum=0.9, **kw), lambda: FilteredReplay(lambda _: 1 - 0.9)),
    "axbn": (
        lambda *a, **kw: AXBNWrapper(*a, measurement_noise=30.0, gain_update_interval=10, **kw),
        lambda: FilteredReplay(kalman_gain(1.0, 30.0, 1.0, 10)),
    ),
    "per-class": (
        lambda *a, **kw: PerClassXBN(*a, std_lambda=0.5, **kw),
        lambda: group_replay([0, 1, 2, 3]),
    ),
    "super-class": (
        lambda *a, **kw: SuperClassXBN(*a, superclasses=SUPERCLASSES, std_lambda=0.5, **kw),
        lambda: group_replay(SUPERCLASSES),
    ),
}
GROUP_CASES = ("per-class", "super-class")
BATCH_SIZES = {7: (4, 7), 48: (4, 16), 4096: (64, 64)}


def drift(
    num_rows: int, num_steps: int, *, is_far: bool = False, seed: int = 0
) -> Iterator[tuple[Array, Array]]:
    """Float32 batches and labels. The spread swings by five, and the mean to forty spreads and back.

    The mean walks by less than a twelfth of the spread a step. Were it to outrun a moving average by many
    spreads, the equations would squeeze the older rows into a point, of which float64 loses the shape, too.

    Args:
        is_far: the mean is a thousand spreads from zero besides.
    """
    rng = np.random.default_rng(seed)
    least, most = BATCH_SIZES[num_rows]
    phases = rng.random(D)
    for step in range(num_steps):
        b = rng.integers(least, most + 1)
        labels = rng.integers(0, NUM_CLASSES, b)
        spread = 5 ** (np.sin(2 * np.pi * (step / 1000 + phases)) / 2)
        mean = 40 * np.sin(2 * np.pi * (step / 3000 + phases)) + 1000 * is_far
        rows = mean + spread * (rng.normal(size=(b, D)) + labels[:, None] / 2)
        yield rows.astype(np.float32), labels


def worst(name: str, num_rows: int, dtype: torch.dtype, *, is_far: bool = False, every: int = 1) -> float:
    """Returns the largest error of a row as a share of the spread, beyond what float32 rounds it by."""
    make, make_replay = CASES[name]
    memory, replay = make(ContrastiveLoss(), D, num_rows, memory_dtype=dtype), make_replay()
    rows, labels, position, found = np.zeros((0, D)), np.zeros(0, dtype=np.int64), 0, 0.0
    for step, (batch, batch_labels) in enumerate(drift(num_rows, STEPS, is_far=is_far)):
        memory(torch.from_numpy(batch), torch.from_numpy(batch_labels))
        rows = replay(rows, labels, batch.astype(np.float64), batch_labels)
        places = (position + np.arange(len(batch))) % num_rows
        position = (position + len(batch)) % num_rows
        missing = min(num_rows, max(len(rows), places.max() + 1)) - len(rows)
        rows = np.concatenate([rows, np.zeros((missing, D))])
        labels = np.concatenate([labels, np.zeros(missing, dtype=np.int64)])
        rows[places], labels[places] = batch, batch_labels
        assert memory.num_rows == len(rows)
        if step % every:
            continue
        error = np.abs(memory.embedding_memory[: len(rows)].double().numpy() - rows)
        error -= EPS * np.abs(rows).max(axis=0)
        found = max(found, (error / rows.std(axis=0, ddof=1)).max())
    return found


@pytest.mark.parametrize("is_far", [False, True], ids=["", "far"])
@pytest.mark.parametrize("num_rows", BATCH_SIZES)
@pytest.mark.parametrize("name", CASES)
def test_rows_equal_the_replay(name: str, num_rows: int, is_far: bool) -> None:
    """In float32; groups of three rows that lie close together by chance are torn apart, and their rounding."""
    most = 1e-6 if name not in GROUP_CASES else 1e-2 if num_rows == 7 else 2e-5
    assert worst(name, num_rows, torch.float32, is_far=is_far, every=16 if num_rows > 1000 else 1) < most


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_rows", BATCH_SIZES)
@pytest.mark.parametrize("name", sorted(CASES.keys() - set(GROUP_CASES)))
def test_half_precision_rows_equal_the_replay(name: str, num_rows: int, dtype: torch.dtype) -> None:
    """A row is rounded when it comes and once a turn, relative to its distance from the mean."""
    most = 1e-2 if dtype == torch.float16 else 6e-2
    assert worst(name, num_rows, dtype, every=16 if num_rows > 1000 else 1) < most


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_no_dimension_stays_collapsed_after_a_batch_of_two_rows(dtype: torch.dtype) -> None:
    memory = XBNWrapper(ContrastiveLoss(), 512, 1000, memory_dtype=dtype)
    for size in [*[16] * 40, 2, 16]:
        batch = torch.randn(size, 512)
        memory(batch, torch.arange(size) % 4)
    older = memory.embedding_memory[: memory.num_rows - 16]
    assert (older.std(dim=0) / batch.std(dim=0) - 1).abs().max() < 0.02
