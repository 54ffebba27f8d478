"""Full covariances, against a float64 replay in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, CrossBatchMemory, SupConLoss

from pml_xbn.adapters import (
    CovarianceMatching,
    GroupMomentMatching,
    MomentMatching,
    check_adapter,
)
from pml_xbn.losses import AdaptiveCrossBatchMemory

D, SIZE = 4, 40
Array = np.ndarray
CASES = [("cholesky", 0.0), ("cholesky", 0.5), ("symmetric", 0.3), ("symmetric", 1.0)]


def root_of(covariance: Array, root: str) -> Array:
    if root == "cholesky":
        return np.linalg.cholesky(covariance)
    values, vectors = np.linalg.eigh(covariance)
    return vectors @ np.diag(np.sqrt(values)) @ vectors.T


def replayed(memory: Array, batch: Array, root: str, shrinkage: float) -> Array:
    """Eq. 7 with A Σ[R] Aᵀ = Σ[B], of roots of blended correlations between the standard deviations."""
    if len(memory) < 2 or len(batch) < 2:
        return memory
    factors = []
    for rows in (memory, batch):
        covariance, std = np.cov(rows.T), rows.std(axis=0, ddof=1)
        blended = (1 - shrinkage) * covariance + shrinkage * np.diag(np.diag(covariance))
        correlations = blended / np.outer(std, std)
        if np.linalg.eigvalsh(correlations).min() < 1e-9:
            factors = [np.diag(x.std(axis=0, ddof=1)) for x in (memory, batch)]
            break
        factors.append(np.diag(std) @ root_of(correlations, root))
    matrix = factors[1] @ np.linalg.inv(factors[0])
    return (memory - memory.mean(axis=0)) @ matrix.T + batch.mean(axis=0)


def steps(num_steps: int, sizes: tuple[int, ...] = (9, 16, 1, 12, 3)) -> list[Array]:
    rng = np.random.default_rng(0)
    mixes = [np.eye(D) + rng.normal(size=(D, D)) / 3 for _ in range(2)]
    out = []
    for step in range(num_steps):
        share = (1 + np.sin(step / 20)) / 2
        mix = share * mixes[0] + (1 - share) * mixes[1]
        rows = rng.normal(size=(sizes[step % len(sizes)], D)) @ mix.T + 10 + np.sin(step / 10)
        out.append(rows.astype(np.float32))
    return out


def memory_with(adapter: torch.nn.Module, loss: torch.nn.Module | None = None, **kwargs: object):
    memory = AdaptiveCrossBatchMemory(loss or ContrastiveLoss(), D, SIZE, **kwargs)
    memory.register_memory_hook(adapter)
    return memory


def labels_of(batch: Array) -> torch.Tensor:
    return torch.arange(len(batch)) % 3


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-5), (torch.float16, 2e-2)], ids=str
)
@pytest.mark.parametrize(("root", "shrinkage"), CASES)
def test_rows_of_a_memory_equal_the_replay(
    root: str, shrinkage: float, dtype: torch.dtype, tolerance: float
) -> None:
    memory = memory_with(CovarianceMatching(root, shrinkage), memory_dtype=dtype)
    rows, position = np.zeros((0, D)), 0
    for step, batch in enumerate(steps(200)):
        memory(torch.from_numpy(batch), labels_of(batch))
        rows = replayed(rows, batch.astype(np.float64), root, shrinkage)
        for row in batch:
            rows = np.concatenate([rows[:position], row[None], rows[position + 1 :]])
            position = (position + 1) % SIZE
        stored = memory.embedding_memory[: memory.num_rows].numpy()
        error = np.abs(stored - rows) / rows.std(axis=0, ddof=1)
        assert error.max() < tolerance, (step, error.max())


def test_no_row_is_written_to_but_by_the_next_batch() -> None:
    memory = memory_with(CovarianceMatching())
    for batch in steps(40, (8,)):
        before = memory.queue.contents.rows.stored.clone()
        memory(torch.from_numpy(batch), labels_of(batch))
        after, newest = memory.queue.contents.rows.stored, memory.curr_batch_idx
        before[newest] = after[newest]
        assert torch.equal(before, after)


@pytest.mark.parametrize(("root", "shrinkage"), CASES)
def test_the_check_of_all_adapters(root: str, shrinkage: float) -> None:
    check_adapter(CovarianceMatching(root, shrinkage))


def test_full_shrinkage_is_plain_moment_matching() -> None:
    memory, batch, labels = torch.randn(30, D), torch.randn(9, D) * 2 + 1, torch.zeros(30)
    for root in ("cholesky", "symmetric"):
        found = CovarianceMatching(root, 1.0)(memory, labels, batch, labels[:9])
        torch.testing.assert_close(found, MomentMatching()(memory, labels, batch, labels[:9]))


@pytest.mark.parametrize("root", ["cholesky", "symmetric"])
def test_singular_covariances_take_the_map_of_each_dimension(root: str) -> None:
    labels = torch.zeros(30)
    memory, batch = torch.randn(30, D), torch.randn(3, D)  # fewer rows than dimensions
    found = CovarianceMatching(root, 0.0)(memory, labels, batch, labels[:3])
    torch.testing.assert_close(found, MomentMatching()(memory, labels, batch, labels[:3]))


@pytest.mark.parametrize("root", ["cholesky", "symmetric"])
@pytest.mark.parametrize("shrinkage", [0.0, 0.5])
def test_nothing_becomes_nan(root: str, shrinkage: float) -> None:
    memory = memory_with(CovarianceMatching(root, shrinkage))
    batches = steps(12, (8,))
    batches[2] = np.repeat(batches[2][:1], 8, axis=0)  # no spread at all
    batches[3][:, 1] = batches[3][:, 0]  # two dimensions alike
    batches[4][:, 2] = 7  # one without spread
    batches[5] *= 1e30
    batches[6] *= 1e-30
    for batch in batches:
        loss = memory(torch.from_numpy(batch), labels_of(batch))
        assert torch.isfinite(memory.embedding_memory).all()
        assert torch.isfinite(loss) or np.abs(batch).max() > 1e20


@pytest.mark.parametrize("saved_after", [0, 1, 7])
def test_state_has_one_shape_and_continues_bit_for_bit(saved_after: int) -> None:
    fresh, memory = memory_with(CovarianceMatching()), memory_with(CovarianceMatching())
    shapes = {name: value.shape for name, value in fresh.state_dict().items()}
    for batch in steps(saved_after):
        memory(torch.from_numpy(batch), labels_of(batch))
    state = memory.state_dict()
    assert {name: value.shape for name, value in state.items()} == shapes
    fresh.load_state_dict(state)
    for batch in steps(20):
        for each in (memory, fresh):
            each(torch.from_numpy(batch), labels_of(batch))
        assert torch.equal(memory.embedding_memory, fresh.embedding_memory)


@pytest.mark.parametrize("loss", [SupConLoss, ContrastiveLoss])
def test_loss_and_gradient_are_those_against_the_rows(loss: type[torch.nn.Module]) -> None:
    memory = memory_with(CovarianceMatching(), loss())
    for batch in steps(12, (8,)):
        first, second = (torch.from_numpy(batch).requires_grad_() for _ in range(2))
        queue_idx, filled = memory.queue_idx, memory.has_been_filled
        found = memory(first, labels_of(batch))
        found.backward()
        pml = CrossBatchMemory(loss(), D, SIZE)
        pml.embedding_memory, pml.label_memory = memory.embedding_memory.clone(), memory.label_memory.clone()
        pml.queue_idx, pml.has_been_filled = queue_idx, filled
        expected = pml(second, labels_of(batch))
        expected.backward()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(first.grad, second.grad, rtol=1e-3, atol=1e-5)


def test_rows_are_the_same_however_they_are_read() -> None:
    memory = memory_with(CovarianceMatching())
    for batch in steps(12):
        memory(torch.from_numpy(batch), labels_of(batch))
    rows = memory.queue.contents.rows
    values, places = rows.read(torch.float64), torch.tensor([[3, 39], [0, 20]])
    torch.testing.assert_close(rows.at(places, torch.float64), values[places])
    torch.testing.assert_close(rows.column(2, places[0], torch.float64), values[places[0], 2])
    weights, divisors = torch.rand(3, len(rows)).double(), torch.rand(len(rows)).double() + 1
    torch.testing.assert_close(rows.weighted_sum(weights, divisors), (weights / divisors) @ values)


@pytest.mark.parametrize("other", [MomentMatching, GroupMomentMatching])
@pytest.mark.parametrize("is_first", [True, False])
def test_it_goes_with_other_adapters(other: type[torch.nn.Module], is_first: bool) -> None:
    adapters = [CovarianceMatching(), other()]
    memory = memory_with(adapters[is_first])
    memory.register_memory_hook(adapters[not is_first])
    for batch in steps(20):
        memory(torch.from_numpy(batch), labels_of(batch))
    assert torch.isfinite(memory.embedding_memory).all()


@pytest.mark.parametrize(
    ("options", "message"), [({"root": "qr"}, "root='qr'"), ({"shrinkage": 1.1}, "shrinkage=1.1")]
)
def test_bad_options_name_the_value(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CovarianceMatching(**options)
