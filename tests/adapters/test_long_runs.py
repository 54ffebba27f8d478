"""Rows that are adapted for thousands of steps, against the equations replayed in float64.

The number of steps is that of the environment variable PML_XBN_DRIFT_STEPS. As a script it prints what it
measures: ``PML_XBN_DRIFT_STEPS=100000 python tests/adapters/test_long_runs.py 7 48``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch

from pml_xbn.adapters import BaseAdapter, GroupMomentMatching, KalmanMomentMatching, MomentMatching
from pml_xbn.adapters._coordinates import Sums
from pml_xbn.adapters._rows import Rows

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


CASES: dict[str, tuple[Callable[[], BaseAdapter], Callable[[], Replay]]] = {
    "xbn": (MomentMatching, FilteredReplay),
    "centre": (lambda: MomentMatching(match_std=False), lambda: FilteredReplay(match_std=False)),
    "ema": (lambda: MomentMatching(momentum=0.9), lambda: FilteredReplay(lambda _: 1 - 0.9)),
    "axbn": (
        lambda: KalmanMomentMatching(1.0, 30.0, 1.0, 10),
        lambda: FilteredReplay(kalman_gain(1.0, 30.0, 1.0, 10)),
    ),
    "per-class": (lambda: GroupMomentMatching(0.5, 0.5), lambda: group_replay([0, 1, 2, 3])),
    "super-class": (
        lambda: GroupMomentMatching(0.5, 0.5, superclasses=SUPERCLASSES),
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


class Figures(NamedTuple):
    """The worst of a run, relative to the spread of the rows of the step in the dimension.

    Attributes:
        as_read: error of a float32 row as it is read.
        beyond_rounding: the same less what any float32 number so far from zero is rounded by.
        rms: root mean square over rows of the errors of rows read in float64.
        scales: least and largest binary exponent of a generation's scale relative to the spread.
    """

    as_read: float
    beyond_rounding: float
    rms: float
    scales: tuple[float, float]


def run(
    name: str,
    num_rows: int,
    dtype: torch.dtype,
    num_steps: int = STEPS,
    *,
    is_far: bool = False,
    every: int = 1,
    seed: int = 0,
) -> Figures:
    """Adapts and stores, as a memory does, and compares every so many steps."""
    make, make_replay = CASES[name]
    adapter, replay = make(), make_replay()
    rows, labels = Rows.of(torch.zeros(0, D), num_rows, 0, dtype), torch.zeros(num_rows, dtype=torch.int64)
    values, position = np.zeros((0, D)), 0
    as_read = beyond_rounding = rms = 0.0
    scales = (np.inf, -np.inf)
    for step, (batch, batch_labels) in enumerate(drift(num_rows, num_steps, is_far=is_far, seed=seed)):
        tensor, tensor_labels = torch.from_numpy(batch), torch.from_numpy(batch_labels)
        before = rows.stored.clone()
        adapted = adapter.adapt(rows, labels[: len(rows)], tensor, tensor_labels)
        if name not in GROUP_CASES:
            assert adapted.stored is rows.stored
        rows = adapted.put(tensor, is_whitened=True)

        values = replay(values, labels[: len(values)].numpy(), batch.astype(np.float64), batch_labels)
        places = (position + np.arange(len(batch))) % num_rows
        position = (position + len(batch)) % num_rows
        values = np.concatenate([values, np.zeros((len(rows) - len(values), D))])
        values[places] = batch
        labels[places] = tensor_labels
        if name not in GROUP_CASES:
            before[places] = rows.stored[places]
            assert torch.equal(before, rows.stored), f"step {step} has written to other rows"
        if step % every:
            continue
        spread = values.std(axis=0, ddof=1)
        error = np.abs(rows.read(torch.float32).numpy() - values)
        rounding = EPS * np.abs(values).max(axis=0)
        as_read = max(as_read, (error / spread).max())
        beyond_rounding = max(beyond_rounding, ((error - rounding) / spread).max())
        exact = rows.read(torch.float64).numpy() - values
        rms = max(rms, (np.sqrt((exact**2).mean(axis=0)) / spread).max())
        counts = rows.boundary, len(rows) - rows.boundary
        for scale, count in zip(rows.coordinates.scale, counts, strict=True):
            if count:
                exponents = np.log2(scale.abs().numpy() / spread)
                scales = min(scales[0], exponents.min()), max(scales[1], exponents.max())
    return Figures(as_read, beyond_rounding, rms, scales)


def test_nothing_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments follow from sums that only the rows that come and go change."""
    measured, of = [], Sums.of
    monkeypatch.setattr(Sums, "of", lambda stored: measured.append(stored.shape[-2]) or of(stored))
    for name in CASES.keys() - set(GROUP_CASES):
        run(name, 48, torch.float32, 200)
    assert max(measured) <= BATCH_SIZES[48][1]


@pytest.mark.parametrize("num_rows", BATCH_SIZES)
@pytest.mark.parametrize("name", CASES)
def test_float32_rows_equal_the_replay(name: str, num_rows: int) -> None:
    found = run(name, num_rows, torch.float32, every=16 if num_rows > 1000 else 1)
    assert found.beyond_rounding < most_in_float32(name, num_rows), found
    if name not in GROUP_CASES:
        assert found.rms < 1e-6, found
        assert -6 < found.scales[0] < found.scales[1] < 6, found


@pytest.mark.parametrize("name", CASES)
def test_a_mean_of_a_thousand_spreads_costs_what_float32_rounds_by(name: str) -> None:
    found = run(name, 48, torch.float32, is_far=True)
    assert found.beyond_rounding < 1e-5, found
    if name not in GROUP_CASES:
        assert found.rms < 1e-6, found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_rows", BATCH_SIZES)
@pytest.mark.parametrize("name", sorted(CASES.keys() - set(GROUP_CASES)))
def test_half_precision_rows_equal_the_replay(name: str, num_rows: int, dtype: torch.dtype) -> None:
    """A bfloat16 row that lies four spreads out is itself rounded by up to 1/64 of the spread.

    Of seven rows that follow a moving average some lie further out still.
    """
    found = run(name, num_rows, dtype, every=16 if num_rows > 1000 else 1)
    assert found.rms < (1e-2 if dtype == torch.float16 else 2e-2), found
    assert found.as_read < (1e-2 if dtype == torch.float16 else 4e-2), found


def most_in_float32(name: str, num_rows: int) -> float:
    """Three rows of a group that lie close together by chance are torn apart, and so is their rounding."""
    return 1e-2 if name in GROUP_CASES and num_rows == 7 else 2e-5 if name in GROUP_CASES else 1e-5


def _print_figures(num_rows: int) -> None:
    every = 16 if num_rows > 1000 else 5
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for is_far in (False, True) if dtype == torch.float32 else (False,):
            for name in CASES:
                start = time.time()
                found = run(name, num_rows, dtype, is_far=is_far, every=every)
                print(
                    f"n={num_rows} {str(dtype)[6:]} {name}{' far' * is_far}: read {found.as_read:.2g}, "
                    f"beyond rounding {found.beyond_rounding:.2g}, rms {found.rms:.2g}, scales "
                    f"2^{found.scales[0]:.1f} to 2^{found.scales[1]:.1f} ({time.time() - start:.0f} s)",
                    flush=True,
                )


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        _print_figures(number)
