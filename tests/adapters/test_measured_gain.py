"""The measured gain, against a Kalman filter and against plain numbers in float64."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from two_of_each_class import CLASSES, LABELS, batch_of, memory_of

from pml_xbn.adapters import MeasuredGain, MomentMatching
from pml_xbn.losses import AdaptiveCrossBatchMemory
from pml_xbn.testing import check_adapter


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


@pytest.mark.parametrize("size", [2, 5])
def test_a_state_of_other_settings_is_refused(size: int) -> None:
    settings = list(itertools.product([True, False], repeat=2))
    states = {}
    for match_std, per_dimension in settings:
        adapter = MeasuredGain(3, match_std, per_dimension)
        adapter.set_embedding_size(size)
        states[match_std, per_dimension] = adapter.state_dict()
    for (own, state), registered in itertools.product(states.items(), [True, False]):
        for other in settings:
            adapter = MeasuredGain(3, *other)
            if registered:
                adapter.set_embedding_size(size)
            if own == other:
                adapter.load_state_dict(state)
                continue
            with pytest.raises(ValueError, match="not that of a MeasuredGain with these settings"):
                adapter.load_state_dict(state)
    with pytest.raises(ValueError, match="not that of a MeasuredGain"):
        MeasuredGain().load_state_dict(MomentMatching().state_dict())


def test_a_state_that_is_none_or_spoilt_is_refused() -> None:
    adapter = MeasuredGain(3)
    adapter(memory_of(0), LABELS, batch_of(0), LABELS)
    state = adapter.state_dict()["_extra_state"]
    for other in (state * torch.nan, state.to("meta"), state[None], state[:2], "a text"):
        with pytest.raises(ValueError, match="not that of a MeasuredGain"):
            MeasuredGain(3).load_state_dict({"_extra_state": other})
    state[-1] = torch.nan
    with pytest.raises(ValueError, match="holds NaN or inf"):
        MeasuredGain(3).load_state_dict({"_extra_state": state})


@pytest.mark.parametrize("per_dimension", [False, True])
def test_a_unit_that_fires_in_few_batches_keeps_its_spread(per_dimension: bool) -> None:
    adapter, rows = MeasuredGain(3, per_dimension=per_dimension), memory_of(0)
    for step in range(40):
        batch = batch_of(step)
        if step > 3 and step % 2:
            batch[:, 0] = 0.0
        rows = adapter(rows, LABELS, batch, LABELS)
        assert torch.isfinite(rows).all()
    torch.testing.assert_close(rows[:, 0].std(), batch_of(0)[:, 0].std(), rtol=0.5, atol=0.0)
    adapter(rows, LABELS, batch * 0.0, LABELS)
    assert torch.isfinite(adapter.gains).all()


@pytest.mark.parametrize("per_dimension", [False, True])
def test_a_unit_whose_noise_was_never_measured_keeps_its_spread(per_dimension: bool) -> None:
    """It is dead in every second batch, from the first on, so that no two batches in a row have a spread."""
    adapter, rows = MeasuredGain(3, per_dimension=per_dimension), memory_of(0)
    for step in range(40):
        batch = batch_of(step)
        batch[:, 0] *= step % 2
        rows = adapter(rows, LABELS, batch, LABELS)
        if step < 3:  # at first rows take the batch's spread, and none where it has none
            rows[:, 0] += memory_of(step + 1)[:, 0]
    assert rows[:, 0].std() > 0.3


@pytest.mark.parametrize("per_dimension", [False, True])
def test_a_first_batch_of_nan_leaves_no_trace(per_dimension: bool) -> None:
    adapters = [MeasuredGain(3, per_dimension=per_dimension) for _ in range(2)]
    first = torch.full_like(batch_of(0), torch.nan)
    adapters[0](memory_of(0)[:1], LABELS, first, LABELS)
    for step in range(1, 12):
        moved = [adapter(memory_of(0), LABELS, batch_of(step) + 100, LABELS) for adapter in adapters]
        torch.testing.assert_close(*moved)


@pytest.mark.parametrize("per_dimension", [False, True])
def test_a_unit_that_is_always_nan_changes_nothing_for_others(per_dimension: bool) -> None:
    adapters = [MeasuredGain(3, per_dimension=per_dimension) for _ in range(2)]
    for step in range(12):
        memory, batch = memory_of(0), batch_of(step)
        of_others = adapters[0](memory[:, 1:], LABELS, batch[:, 1:], LABELS)
        batch[0, 0] = torch.nan
        torch.testing.assert_close(adapters[1](memory, LABELS, batch, LABELS)[:, 1:], of_others)
    assert (adapters[0].gains < 1).all()


@pytest.mark.parametrize("match_std", [True, False])
def test_it_keeps_the_contract_of_adapters(match_std: bool) -> None:
    check_adapter(MeasuredGain(3, match_std))


@pytest.mark.parametrize("change", [{"match_std": False}, {"per_dimension": True}])
def test_settings_that_are_changed_begin_anew(change: dict[str, bool]) -> None:
    changed, fresh = MeasuredGain(3), MeasuredGain(3, **change)
    for step in range(6):
        changed(memory_of(0), LABELS, batch_of(step), LABELS)
    for name, value in change.items():
        setattr(changed, name, value)
    changed.load_state_dict(changed.state_dict())
    for step in range(6, 12):
        moved = [adapter(memory_of(0), LABELS, batch_of(step), LABELS) for adapter in (changed, fresh)]
        torch.testing.assert_close(*moved)


@pytest.mark.parametrize(("is_steady", "least", "most"), [(False, 0.5, 0.65), (True, 0.65, 0.75)])
def test_rows_of_a_fast_model_follow_by_more_than_half(is_steady: bool, least: float, most: float) -> None:
    """Half of what the model moves in a step counts as noise: 2 − √2 of a random walk, √3 − 1 of a drift."""
    adapter, rows, centre = MeasuredGain(window=50, match_std=False), memory_of(0), 0.0
    gains = []
    for step in range(600):
        walk = float(torch.randn((), generator=torch.Generator().manual_seed(10_000 + step)))
        centre += 10.0 if is_steady else 10.0 * walk
        rows = adapter(rows, LABELS, batch_of(step, centre), LABELS)
        gains.append(float(adapter.gains[0]))
    assert least < np.mean(gains[300:]) < most


def test_a_window_that_is_set_is_checked() -> None:
    with pytest.raises(ValueError, match="window=0"):
        MeasuredGain().window = 0


def test_embeddings_of_another_size_are_refused() -> None:
    adapter, memory = MeasuredGain(), memory_of(0)
    adapter(memory, LABELS, batch_of(0), LABELS)
    with pytest.raises(ValueError, match=r"of 3 numbers(.|\n)* of 5: build an adapter for each"):
        adapter(memory[:, :3], LABELS, batch_of(1)[:, :3], LABELS)
    with pytest.raises(ValueError, match=r"of 3 numbers(.|\n)* of 5: build an adapter for each"):
        AdaptiveCrossBatchMemory(SupConLoss(), 3, 8).register_memory_hook(adapter)
    assert torch.isfinite(adapter.get_extra_state()).all()  # it has kept what it knew
