"""The measured gain, against a Kalman filter and against plain numbers in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.hooks.measured_gain import MeasuredGain
from pml_xbn import XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

D, CLASSES = 5, 16
LABELS = torch.arange(CLASSES).repeat_interleave(2)


def batch_of(seed: int, centre: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(CLASSES, D, generator=generator, dtype=torch.float64) + centre
    return means[LABELS] + 0.1 * torch.randn(2 * CLASSES, D, generator=generator, dtype=torch.float64)


def memory_of(seed: int) -> Tensor:
    return torch.randn(200, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_it_centres_until_the_averages_have_settled() -> None:
    hook, memory = MeasuredGain(window=3), memory_of(0)
    for step in range(3):
        moved = hook(memory, LABELS, batch_of(step), LABELS)
        assert moved is not None
        torch.testing.assert_close(moved.mean(dim=0), batch_of(step).mean(dim=0))
    moved = hook(memory, LABELS, batch_of(3), LABELS)
    assert moved is not None
    assert not torch.allclose(moved.mean(dim=0), batch_of(3).mean(dim=0))


@pytest.mark.parametrize("per_dimension", [False, True])
def test_its_gain_is_one_minus_noise_over_the_squared_gap(per_dimension: bool) -> None:
    window, memory = 3, memory_of(0).numpy()
    hook = MeasuredGain(window, per_dimension=per_dimension)
    average = None
    for step in range(1, 9):
        batch = batch_of(step, centre=0.3)
        moved = hook(torch.from_numpy(memory), LABELS, batch, LABELS)
        means = batch.numpy().reshape(CLASSES, 2, D).mean(axis=1)
        gap = batch.numpy().mean(axis=0) - memory.mean(axis=0)
        now = np.stack([gap**2, means.var(axis=0, ddof=1) / CLASSES])
        now = now if per_dimension else now.mean(axis=1, keepdims=True)
        weight = 1 / min(step, window)
        average = now if average is None else (1 - weight) * average + weight * now
        gain = np.clip(1 - average[1] / average[0], 0, 1) if step > window else 1.0
        np.testing.assert_allclose(moved, memory + gain * gap, atol=1e-12)


def test_rows_that_do_not_lag_hardly_move_and_rows_that_do_follow() -> None:
    """The gain is near that of the Kalman filter of a walk whose steps are known, and of none."""
    for drift in (0.0, 0.5):
        hook, rows, centre = MeasuredGain(window=100), memory_of(0), 0.0
        rows = rows - rows.mean(dim=0)
        gains = []
        for step in range(600):
            centre += drift * float(torch.randn((), generator=torch.Generator().manual_seed(10_000 + step)))
            moved = hook(rows, LABELS, batch_of(step, centre), LABELS)
            assert moved is not None
            rows = moved
            gains.append(float(hook.gains["mean"].mean()))
        found = np.mean(gains[300:])
        noise, process = 1.005 / CLASSES, drift**2
        ahead = (process + np.sqrt(process**2 + 4 * process * noise)) / 2  # variance before the measurement
        assert found == pytest.approx(ahead / (ahead + noise), abs=0.12)


def test_noise_may_be_that_from_one_batch_to_the_next() -> None:
    window, memory = 2, memory_of(0).numpy()
    hook, previous, averages = MeasuredGain(window, noise="steps"), None, None
    for step in range(1, 7):
        batch = batch_of(step, centre=0.3)
        moved = hook(torch.from_numpy(memory), LABELS, batch, LABELS)
        mean = batch.numpy().mean(axis=0)
        noise = 0 if previous is None else ((mean - previous) ** 2 / 2).mean()
        now = np.array([((mean - memory.mean(axis=0)) ** 2).mean(), noise])
        weight = 1 / min(step, window)
        averages = now if averages is None else (1 - weight) * averages + weight * now
        gain = np.clip(1 - averages[1] / averages[0], 0, 1) if step > window else 1.0
        np.testing.assert_allclose(moved, memory + gain * (mean - memory.mean(axis=0)), atol=1e-12)
        previous = mean


def test_spreads_are_matched_as_xbn_does_at_first_and_less_when_they_only_differ_by_noise() -> None:
    hook, memory = MeasuredGain(window=20, noise="steps", match_std=True), memory_of(0)
    batch = 3 * batch_of(1)
    moved = hook(memory, LABELS, batch, LABELS)
    assert moved is not None
    expected = (memory - memory.mean(0)) / memory.std(0) * batch.std(0) + batch.mean(0)
    torch.testing.assert_close(moved, expected)
    rows = (memory - memory.mean(dim=0)) / memory.std(dim=0)
    for step in range(2, 200):
        hook(rows, LABELS, batch_of(step), LABELS)
    assert float(hook.gains["std"]) < 0.4


def test_it_leaves_a_memory_alone_that_it_cannot_measure() -> None:
    hook, memory = MeasuredGain(), memory_of(0)
    assert hook(memory[:1], LABELS[:1], batch_of(0), LABELS) is None
    assert hook(memory, LABELS, batch_of(0)[:2], LABELS[:2]) is None  # one class


def test_it_is_a_hook_of_a_memory() -> None:
    from pytorch_metric_learning.losses import SupConLoss

    ours = AdaptiveCrossBatchMemory(SupConLoss(), embedding_size=D, memory_size=96)
    ours.register_memory_hook(MeasuredGain())
    centring = XBNWrapper(SupConLoss(), embedding_size=D, memory_size=96, match_std=False)
    for step in range(5):
        values = [memory(batch_of(step).float(), LABELS) for memory in (ours, centring)]
        torch.testing.assert_close(*values)
