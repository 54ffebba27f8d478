"""The measured gain, against a Kalman filter and against plain numbers in float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from pml_xbn.adapters import MeasuredGain

D, CLASSES = 5, 16
LABELS = torch.arange(CLASSES).repeat_interleave(2)


def batch_of(seed: int, centre: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(CLASSES, D, generator=generator, dtype=torch.float64) + centre
    return means[LABELS] + 0.1 * torch.randn(2 * CLASSES, D, generator=generator, dtype=torch.float64)


def memory_of(seed: int) -> Tensor:
    return torch.randn(200, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def levels(rows: np.ndarray) -> np.ndarray:
    return np.stack([rows.mean(axis=0), np.log(rows.std(axis=0, ddof=1))])


@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("match_std", [False, True])
def test_its_gains_are_one_minus_noise_over_the_squared_gap(match_std: bool, per_dimension: bool) -> None:
    window, memory = 3, 1.5 * memory_of(0).numpy()
    adapter = MeasuredGain(window, match_std, per_dimension)
    square = noise = previous = None
    for step in range(1, 9):
        batch = batch_of(step, centre=0.3)
        moved = adapter(torch.from_numpy(memory), LABELS, batch, LABELS)
        now, gap = levels(batch.numpy()), levels(batch.numpy()) - levels(memory)
        mean = (lambda x: x) if per_dimension else (lambda x: x.mean(axis=1, keepdims=True))
        weight = 1 / min(step, window)
        square = mean(gap**2) if square is None else (1 - weight) * square + weight * mean(gap**2)
        if previous is not None:
            weight, of_step = 1 / min(step - 1, window), mean((now - previous) ** 2 / 2)
            noise = of_step if noise is None else (1 - weight) * noise + weight * of_step
        gain = np.ones_like(square) if step <= window else np.clip(1 - noise / square, 0, 1)
        scale = np.exp(gain[1] * gap[1]) if match_std else 1.0
        expected = (memory - memory.mean(axis=0)) * scale + memory.mean(axis=0) + gain[0] * gap[0]
        np.testing.assert_allclose(moved, expected, atol=1e-12)
        previous = now


def test_rows_that_do_not_lag_hardly_move_and_rows_that_do_follow() -> None:
    """The gain is near that of the Kalman filter of a walk whose steps are known, and of none."""
    for drift in (0.0, 0.1):
        adapter, rows, centre = MeasuredGain(window=100, match_std=False), memory_of(0), 0.0
        rows = rows - rows.mean(dim=0)
        gains = []
        for step in range(600):
            centre += drift * float(torch.randn((), generator=torch.Generator().manual_seed(10_000 + step)))
            rows = adapter(rows, LABELS, batch_of(step, centre), LABELS)
            gains.append(float(adapter.gains[0]))
        found = np.mean(gains[300:])
        noise, process = 1.005 / CLASSES, drift**2
        ahead = (process + np.sqrt(process**2 + 4 * process * noise)) / 2  # variance before the measurement
        assert found == pytest.approx(ahead / (ahead + noise), abs=0.15)


def test_spreads_are_matched_as_xbn_does_at_first_and_less_when_they_only_differ_by_noise() -> None:
    adapter, memory = MeasuredGain(), memory_of(0)
    batch = 3 * batch_of(1)
    moved = adapter(memory, LABELS, batch, LABELS)
    expected = (memory - memory.mean(0)) / memory.std(0) * batch.std(0) + batch.mean(0)
    torch.testing.assert_close(moved, expected)
    rows = (memory - memory.mean(dim=0)) / memory.std(dim=0)
    for step in range(2, 200):
        adapter(rows, LABELS, batch_of(step), LABELS)
    assert float(adapter.gains[1]) < 0.4


def test_the_state_of_gains_per_dimension_goes_on() -> None:
    adapter, memory = MeasuredGain(window=3, per_dimension=True), memory_of(0)
    for step in range(6):
        adapter(memory, LABELS, batch_of(step), LABELS)
    fresh = MeasuredGain(window=3, per_dimension=True)
    fresh.load_state_dict(copy.deepcopy(adapter.state_dict()))
    for step in range(6, 9):
        batch = batch_of(step)
        assert torch.equal(adapter(memory, LABELS, batch, LABELS), fresh(memory, LABELS, batch, LABELS))
    with pytest.raises(ValueError, match="holds 42 numbers"):
        MeasuredGain(match_std=False).load_state_dict(adapter.state_dict())


def test_a_unit_that_fires_in_few_batches_keeps_its_spread_once_the_gain_is_measured() -> None:
    adapter, memory = MeasuredGain(window=3), memory_of(0)
    for step in range(9):
        batch = batch_of(step)
        if step % 2:
            batch[:, 0] = 0.0
        moved = adapter(memory, LABELS, batch, LABELS)
        assert torch.isfinite(moved).all()
    torch.testing.assert_close(moved[:, 0].std(), memory[:, 0].std(), rtol=0.3, atol=0.0)
    adapter(memory, LABELS, batch * 0.0, LABELS)
    assert torch.isfinite(adapter.gains).all()
