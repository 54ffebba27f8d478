from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kinds import MEMORIES
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import nn

from pml_xbn.diagnostics import FeatureDrift, feature_drift


@pytest.mark.parametrize("squared", [False, True])
def test_drift_is_mean_and_maximum_of_the_norms(squared: bool, dtype: torch.dtype) -> None:
    now, before = torch.randn(2, 7, 5).to(dtype)
    norms = [
        np.sqrt(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))
        for x, y in zip(now.double().tolist(), before.double().tolist(), strict=True)
    ]
    if squared:
        norms = [norm**2 for norm in norms]
    drift = feature_drift(now, before, squared=squared)
    assert drift.mean.item() == pytest.approx(sum(norms) / 7, rel=1e-5)
    assert drift.maximum.item() == pytest.approx(max(norms), rel=1e-5)
    assert drift.mean.dtype == torch.promote_types(dtype, torch.float32)


@given(
    deltas=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    every=st.integers(1, 6),
    steps=st.integers(0, 30),
    resume_at=st.integers(0, 30),
)
def test_any_schedule_measures_what_a_full_history_gives(
    deltas: list[int], every: int, steps: int, resume_at: int
) -> None:
    model = torch.zeros(3, 2)
    num_embedded = 0

    def embed() -> torch.Tensor:
        nonlocal num_embedded
        num_embedded += 1
        return model

    def make() -> FeatureDrift:
        return FeatureDrift(embed, deltas, every)

    drift, history = make(), []
    for step in range(steps):
        model += torch.tensor([[1.0], [2.0], [0.5]]) * (step % 4 - 1)  # in place: what is kept is a copy
        history.append(model.double().numpy().copy())
        if step == resume_at:
            state, drift = drift.state_dict(), make()
            drift.load_state_dict(state)
        measured = drift.update(step)
        expected = [delta for delta in sorted(set(deltas)) if step % every == 0 and delta <= step]
        assert list(measured) == expected
        for delta, (mean, maximum) in measured.items():
            norms = np.linalg.norm(history[step] - history[step - delta], axis=1)
            np.testing.assert_allclose([mean, maximum], [norms.mean(), norms.max()], rtol=1e-6)
    wanted = {0} | {t - delta for t in range(0, steps + 10, every) for delta in [0, *deltas]}
    assert num_embedded == len(wanted & set(range(steps)))
    assert len(drift.state_dict()["past"]) <= max(deltas) // every * len(deltas) + len(deltas)


@pytest.mark.parametrize("memory", MEMORIES)
def test_drift_is_zero_exactly_while_the_model_rests(memory: str) -> None:
    images, labels = torch.randn(12, 5), torch.arange(12) % 3
    model = nn.Linear(5, 4)
    loss_fn = MEMORIES[memory](ContrastiveLoss(), 4, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    drift = FeatureDrift(lambda: model(images), deltas=(1, 3), every=1)
    measured = {}
    for step in range(9):
        optimizer.param_groups[0]["lr"] = 0.1 if step >= 4 else 0.0
        measured[step] = drift.update(step)
        optimizer.zero_grad()
        loss_fn(model(images), labels).backward()
        optimizer.step()
    assert measured[4][1] == measured[4][3] == (0, 0)
    assert all(0 < drift.mean <= drift.maximum for drift in measured[8].values())


def test_a_run_goes_on_on_another_device_than_its_checkpoint_was_loaded_to() -> None:
    drift = FeatureDrift(lambda: torch.zeros(2, 3, device="meta"), deltas=(1,), every=1)
    drift.load_state_dict({"past": {0: torch.zeros(2, 3)}})
    drift.update(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"deltas": (1, 0)}, "deltas=0: pass an integer, 1 or more"), ({"every": 0}, "every=0")],
)
def test_impossible_schedules_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FeatureDrift(lambda: torch.zeros(1, 1), **options)
