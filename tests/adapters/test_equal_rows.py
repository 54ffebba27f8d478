"""Rows that become equal in a dimension stay so, and leave room for those to come."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from float64 import Adapt, Axbn, GroupXbn, Memory, Xbn
from pytorch_metric_learning.losses import ContrastiveLoss

from pml_xbn import AXBNWrapper
from pml_xbn.adapters import BaseAdapter, CovarianceMatching, GroupMomentMatching, MomentMatching
from pml_xbn.losses import AdaptiveCrossBatchMemory

D, SIZE = 3, 30
CASES: dict[str, tuple[Callable[[], BaseAdapter], Callable[[], Adapt]]] = {
    "xbn": (MomentMatching, Xbn),
    "ema": (lambda: MomentMatching(momentum=0.5), lambda: Xbn(momentum=0.5)),
    "covariance": (lambda: CovarianceMatching(shrinkage=1.0), Xbn),
    "per-class": (lambda: GroupMomentMatching(0.5, 0.5), lambda: GroupXbn(0.5, 0.5)),
    "absent stay": (
        lambda: GroupMomentMatching(normalize_absent=False),
        lambda: GroupXbn(normalize_absent=False),
    ),
}
# As shares of the spread of a batch.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def steps(num_steps: int) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Batches like those behind a ReLU: for a few steps a dimension is zero in all rows, and comes back."""
    rng, is_dead = np.random.default_rng(0), np.zeros(D, dtype=bool)
    for _ in range(num_steps):
        labels = rng.integers(0, 12 if rng.random() < 0.5 else 3, rng.integers(5, 12))
        batch = rng.normal(size=(len(labels), D)) + labels[:, None] / 4
        is_dead ^= rng.random(D) < rng.choice([0.1, 0.5])
        batch[:, is_dead] = 0.0
        yield batch.astype(np.float32).astype(np.float64), labels.tolist()


def stored(memory: AdaptiveCrossBatchMemory) -> np.ndarray:
    return memory.embedding_memory[: memory.num_rows].double().numpy()


# In half precision maps of groups round rows at every step, and what a moving average leaves of a spread.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, x) for name in CASES for x in TOLERANCES if x.itemsize >= 4 or name in ("xbn", "covariance")],
    ids=str,
)
def test_dimensions_may_die_and_revive_in_turn(name: str, dtype: torch.dtype) -> None:
    make, make_replay = CASES[name]
    memory, replay = (
        AdaptiveCrossBatchMemory(ContrastiveLoss(), D, SIZE, memory_dtype=dtype),
        Memory(SIZE, D, make_replay()),
    )
    memory.register_memory_hook(make())
    for step, (batch, labels) in enumerate(steps(400)):
        memory(torch.from_numpy(batch).requires_grad_(), torch.tensor(labels))
        replay.step(batch, labels)
        error = np.abs(stored(memory) - replay.rows).max()
        assert error < TOLERANCES[dtype] * (1 + np.abs(replay.rows).max()), (step, error)


def test_a_row_of_a_dimension_that_has_died_goes_with_the_others_when_it_dies_again() -> None:
    memory = AXBNWrapper(ContrastiveLoss(), 1, 5, delay=2, measurement_noise=4.0, gain_update_interval=2)
    replay, adapt = Memory(5, 1, lambda rows, *_: rows), Axbn(1.0, 4.0, 1.0, 2)
    for number, values in enumerate([[0, 0, 0, 0, 1], [0, 0], [1, 1], [0], [0, 0]]):
        if number == 2:
            replay.adapt = adapt
        batch, labels = np.array(values).reshape(-1, 1) / 8, [0] * len(values)
        memory(torch.from_numpy(batch).requires_grad_(), torch.tensor(labels))
        replay.step(batch, labels)
        np.testing.assert_allclose(stored(memory), replay.rows, atol=1e-7)


def test_a_graph_of_before_has_the_gradient_of_then() -> None:
    torch.manual_seed(0)
    memories = [AdaptiveCrossBatchMemory(ContrastiveLoss(), D, SIZE) for _ in range(2)]
    gradients = []
    first, second = torch.randn(8, D), torch.zeros(8, D)
    for number, memory in enumerate(memories):
        memory.register_memory_hook(MomentMatching())
        memory.fill_memory(torch.arange(60.0).reshape(20, D).sin(), torch.arange(20) % 3)
        embeddings = first.clone().requires_grad_()
        loss = memory(embeddings, torch.arange(8) % 3)
        if number == 0:
            memory(second, torch.arange(8) % 3)
        loss.backward()
        gradients.append(embeddings.grad)
    assert torch.equal(*gradients)
