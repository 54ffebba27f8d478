"""The measured gain, against a Kalman filter and against plain numbers in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.hooks.measured_gain import MeasuredGain

D, CLASSES = 5, 16
LABELS = torch.arange(CLASSES).repeat_interleave(2)


def batch_of(seed: int, centre: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(CLASSES, D, generator=generator, dtype=torch.float64) + centre
    return means[LABELS] + 0.1 * torch.randn(2 * CLASSES, D, generator=generator, dtype=torch.float64)


def memory_of(seed: int) -> Tensor:
    return torch.randn(200, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("noise", "per_dimension"), [("classes", False), ("classes", True), ("steps", False)]
)
def test_its_gain_is_one_minus_noise_over_the_squared_gap(noise: str, per_dimension: bool) -> None:
    window, memory = 3, memory_of(0).numpy()
    hook = MeasuredGain(window, noise=noise, per_dimension=per_dimension)
    average = previous = None
    for step in range(1, 9):
        batch = batch_of(step, centre=0.3)
        moved = hook(torch.from_numpy(memory), LABELS, batch, LABELS)
        means, mean = batch.numpy().reshape(CLASSES, 2, D).mean(axis=1), batch.numpy().mean(axis=0)
        gap = mean - memory.mean(axis=0)
        of_steps = 0 * gap if previous is None else (mean - previous) ** 2 / 2
        now = np.stack([gap**2, of_steps if noise == "steps" else means.var(axis=0, ddof=1) / CLASSES])
        now = now if per_dimension else now.mean(axis=1, keepdims=True)
        weight = 1 / min(step, window)
        average = now if average is None else (1 - weight) * average + weight * now
        gain = np.clip(1 - average[1] / average[0], 0, 1) if step > window else 1.0
        np.testing.assert_allclose(moved, memory + gain * gap, atol=1e-12)
        previous = mean


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
