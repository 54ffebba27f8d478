"""Every adapter against an independent float64 re-computation of its paper's equation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from float64 import Axbn, GroupXbn, Rows, Xbn
from torch import Tensor, nn

from pml_xbn.adapters import GroupMomentMatching, KalmanMomentMatching, MomentMatching

SUPERCLASSES = [0, 0, 1, 1, 2, 0]

CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], object]]] = {
    "Eq. 6": (MomentMatching, Xbn),
    "Eq. 4.5": (lambda: MomentMatching(match_std=False), lambda: Xbn(match_std=False)),
    "EMA": (lambda: MomentMatching(momentum=0.7), lambda: Xbn(momentum=0.7)),
    "Algorithm 1": (KalmanMomentMatching, lambda: Axbn(1.0, 0.01, 1.0, 100)),
    "Algorithm 1, noisy": (
        lambda: KalmanMomentMatching(0.5, 20.0, 3.0, 3),
        lambda: Axbn(0.5, 20.0, 3.0, 3),
    ),
    "Eq. 4.3": (GroupMomentMatching, GroupXbn),
    "Eq. 4.3, lambdas": (
        lambda: GroupMomentMatching(0.2, 0.6),
        lambda: GroupXbn(0.2, 0.6),
    ),
    "Eq. 4.3, absent stay": (
        lambda: GroupMomentMatching(0.0, 0.0, normalize_absent=False),
        lambda: GroupXbn(0.0, 0.0, normalize_absent=False),
    ),
    "Eq. 4.4": (
        lambda: GroupMomentMatching(superclasses=SUPERCLASSES),
        lambda: GroupXbn(group_of=SUPERCLASSES.__getitem__),
    ),
}


def drifting_steps(seed: int, dim: int = 5) -> list[tuple[Rows, Rows, Rows, Rows]]:
    """Memories and batches of many sizes whose distribution moves, with one constant dimension."""
    rng = np.random.default_rng(seed)
    steps = []
    for step, (n, b) in enumerate([(0, 4), (1, 8), (2, 2), (9, 1), (7, 8), (40, 16), (40, 6), (33, 2)]):
        memory = rng.normal(step / 3, 0.5 + rng.random(), (n, dim))
        batch = rng.normal(-step / 5, 0.5 + rng.random(), (b, dim))
        memory[:, 0] = 0.25  # no spread: only shifted
        steps.append((memory, rng.integers(0, 6, n), batch, rng.integers(0, 6, b)))
    return steps


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", CASES)
def test_adapter_agrees_with_its_equation(name: str, seed: int, device: torch.device) -> None:
    make_adapter, make_reference = CASES[name]
    adapter, reference = make_adapter().to(device), make_reference()
    for memory, labels, batch, batch_labels in drifting_steps(seed):
        rows = torch.tensor(memory, dtype=torch.float32, device=device)
        out = adapter(
            rows,
            torch.tensor(labels, device=device),
            torch.tensor(batch, dtype=torch.float32, device=device),
            torch.tensor(batch_labels, device=device),
        )
        expected = reference(
            memory.astype(np.float32).astype(np.float64),
            labels,
            batch.astype(np.float32).astype(np.float64),
            batch_labels,
        )
        result = rows if out is None else out
        np.testing.assert_allclose(result.cpu().numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_float64_rows_are_adapted_in_float64(name: str) -> None:
    make_adapter, make_reference = CASES[name]
    adapter, reference = make_adapter(), make_reference()
    for step in drifting_steps(seed=3):
        memory, labels, batch, batch_labels = step
        out = adapter(*(torch.from_numpy(x) for x in step))
        expected = reference(memory, labels, batch, batch_labels)
        result = torch.from_numpy(memory) if out is None else out
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12, atol=1e-12)


def run(adapter: nn.Module, seed: int = 0) -> list[Tensor]:
    """The adapted memories of :func:`drifting_steps`."""
    out = []
    for memory, labels, batch, batch_labels in drifting_steps(seed):
        rows = torch.tensor(memory, dtype=torch.float32)
        new = adapter(
            rows,
            torch.tensor(labels),
            torch.tensor(batch, dtype=torch.float32),
            torch.tensor(batch_labels),
        )
        out.append(rows if new is None else new)
    return out


def assert_same(first: list[Tensor], second: list[Tensor], **tolerance: float) -> None:
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def test_kalman_without_measurement_noise_is_xbn() -> None:
    kalman = KalmanMomentMatching(measurement_noise=0.0, process_noise=0.0, initial_variance=0.0)
    assert_same(run(kalman), run(MomentMatching()), rtol=0, atol=0)


def test_constant_kalman_gain_is_a_moving_average() -> None:
    # q chosen so that the gain stays where it starts: p = (1 − K) p⁻ and p⁻ = p + q, with |B| fixed.
    adapter = KalmanMomentMatching(
        process_noise=1.0, measurement_noise=16.0, initial_variance=(5**0.5 - 1) / 2, gain_update_interval=1
    )
    gains = [adapter.gain(batch_size=16) for _ in range(5)]
    assert gains == pytest.approx([(5**0.5 - 1) / 2] * 5)


def test_sparse_superclass_mapping_equals_the_sequence() -> None:
    mapping = {label: 10 * group for label, group in enumerate(SUPERCLASSES)}
    assert_same(
        run(GroupMomentMatching(superclasses=mapping)), run(GroupMomentMatching(superclasses=SUPERCLASSES))
    )


@pytest.mark.parametrize("batch_size", [1, 10, 64])
def test_paper_noises_make_the_filter_all_but_xbn(batch_size: int) -> None:
    """What the documentation says of q = 1, r = 0.01."""
    adapter = KalmanMomentMatching(gain_update_interval=1)
    gains = [adapter.gain(batch_size) for _ in range(50)]
    assert min(gains) >= (0.99 if batch_size == 1 else 0.999)


def test_rows_without_a_superclass_take_the_xbn_map() -> None:
    adapter = GroupMomentMatching(superclasses={0: 0})
    memory, labels = torch.randn(12, 3), torch.tensor([0] * 6 + [7] * 6)
    batch, batch_labels = torch.randn(8, 3), torch.tensor([0] * 4 + [7] * 4)
    out = adapter(memory, labels, batch, batch_labels)
    xbn = MomentMatching()(memory, labels, batch, batch_labels)
    torch.testing.assert_close(out[6:], xbn[6:])
    assert not torch.allclose(out[:6], xbn[:6])
