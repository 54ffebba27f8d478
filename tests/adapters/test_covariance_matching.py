"""Full covariances, against the equations in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from scipy.linalg import sqrtm

from pml_xbn.adapters import CovarianceMatching, MomentMatching, check_adapter
from pml_xbn.losses import AdaptiveCrossBatchMemory

D, SIZE = 4, 40
Array = np.ndarray
ROOTS = ("principal", "symmetric", "cholesky")
CASES = [(root, shrinkage) for root in ROOTS for shrinkage in (0.0, 0.5)]


def blended(rows: Array, shrinkage: float) -> Array:
    covariance = np.cov(rows.T)
    return (1 - shrinkage) * covariance + shrinkage * np.diag(np.diag(covariance))


def matrix_of(memory: Array, batch: Array, root: str) -> Array:
    """A, of covariances."""
    if root == "principal":
        return sqrtm(batch @ np.linalg.inv(memory)).real
    std, new_std = (np.diag(np.sqrt(np.diag(x))) for x in (memory, batch))
    if root == "cholesky":  # those of the correlations, rescaled, are those of the covariances
        return np.linalg.cholesky(batch) @ np.linalg.inv(np.linalg.cholesky(memory))
    old, new = (np.linalg.inv(s) @ x @ np.linalg.inv(s) for s, x in ((std, memory), (new_std, batch)))
    return new_std @ sqrtm(new).real @ np.linalg.inv(sqrtm(old).real) @ np.linalg.inv(std)


def replayed(memory: Array, batch: Array, root: str, shrinkage: float) -> Array:
    """Eq. 7 with b of Eq. 11; Eq. 12 where a covariance is singular."""
    if len(memory) < 2 or len(batch) < 2:
        return memory
    covariances = [blended(x, shrinkage) for x in (memory, batch)]
    if not shrinkage and min(len(memory), len(batch)) <= D:
        covariances = [np.diag(np.diag(x)) for x in covariances]
    matrix = matrix_of(*covariances, root)
    return memory @ matrix.T + batch.mean(axis=0) - matrix @ memory.mean(axis=0)


def mixed(seed: int, n: int, mean: float = 0.0) -> Array:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, D)) @ (np.eye(D) + rng.normal(size=(D, D)) / 2).T + mean


def adapted(memory: Array, batch: Array, root: str = "principal", shrinkage: float = 0.0) -> Array:
    tensors = (torch.from_numpy(x) for x in (memory, np.zeros(len(memory)), batch, np.zeros(len(batch))))
    return CovarianceMatching(root, shrinkage)(*tensors).numpy()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("root", "shrinkage"), CASES)
def test_the_matrix_is_that_of_the_equations(seed: int, root: str, shrinkage: float) -> None:
    memory, batch = mixed(seed, 50), mixed(seed + 100, 20)
    old, new = np.cov(memory.T), np.cov(batch.T)
    matrix = CovarianceMatching(root, shrinkage).matrix(*map(torch.from_numpy, (old, new))).numpy()
    old, new = blended(memory, shrinkage), blended(batch, shrinkage)
    np.testing.assert_allclose(matrix, matrix_of(old, new, root), atol=1e-10)
    np.testing.assert_allclose(matrix @ old @ matrix.T, new, atol=1e-10)  # Eq. 9
    is_eq_10 = np.allclose(matrix @ matrix, new @ np.linalg.inv(old), atol=1e-10)
    assert is_eq_10 == (root == "principal")
    if is_eq_10:
        assert np.linalg.eigvals(matrix).real.min() > 0


def test_principal_roots_go_with_any_coordinates() -> None:
    memory, batch = mixed(0, 50, mean=3.0), mixed(1, 20)
    change = np.random.default_rng(2).normal(size=(D, D))
    np.testing.assert_allclose(adapted(memory @ change, batch @ change), adapted(memory, batch) @ change)
    scales = np.diag([2.0, 3.0, 0.1, 5.0])
    for root, one in (("symmetric", scales[[2, 0, 3, 1]]), ("cholesky", scales)):
        first, second = adapted(memory @ one, batch @ one, root), adapted(memory, batch, root) @ one
        np.testing.assert_allclose(first, second)


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


def memory_with(*hooks: torch.nn.Module, **kwargs: object) -> AdaptiveCrossBatchMemory:
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), D, SIZE, **kwargs)
    for hook in hooks:
        memory.register_memory_hook(hook)
    return memory


def labels_of(batch: Array) -> torch.Tensor:
    return torch.arange(len(batch)) % 3


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-7), (torch.float32, 1e-4), (torch.float16, 4e-2)], ids=str
)
@pytest.mark.parametrize(("root", "shrinkage"), CASES)
def test_rows_of_a_memory_equal_the_replay(
    root: str, shrinkage: float, dtype: torch.dtype, tolerance: float
) -> None:
    memory = memory_with(CovarianceMatching(root, shrinkage), memory_dtype=dtype)
    rows, position = np.zeros((0, D)), 0
    for step, batch in enumerate(steps(60)):
        memory(torch.from_numpy(batch), labels_of(batch))
        rows = replayed(rows, batch.astype(np.float64), root, shrinkage)
        for row in batch:
            rows = np.concatenate([rows[:position], row[None], rows[position + 1 :]])
            position = (position + 1) % SIZE
        stored = memory.embedding_memory[: memory.num_rows].numpy()
        error = np.abs(stored - rows) / rows.std(axis=0, ddof=1)
        assert error.max() < tolerance, (step, error.max())


@pytest.mark.parametrize(("root", "shrinkage"), CASES)
def test_the_check_of_all_adapters(root: str, shrinkage: float) -> None:
    check_adapter(CovarianceMatching(root, shrinkage), num_steps=60)


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize(("shrinkage", "b"), [(1.0, 9), (0.0, 3)], ids=["full shrinkage", "singular"])
def test_without_correlations_it_is_moment_matching(root: str, shrinkage: float, b: int) -> None:
    inputs = torch.randn(30, D), torch.zeros(30), torch.randn(b, D) * 2 + 1, torch.zeros(b)
    torch.testing.assert_close(CovarianceMatching(root, shrinkage)(*inputs), MomentMatching()(*inputs))


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("where", ["memory", "batch"])
def test_a_dimension_without_spread_has_no_part_in_the_others(root: str, where: str) -> None:
    memory, batch = mixed(0, 30), mixed(1, 20)
    (memory if where == "memory" else batch)[:, 2] = 0.1  # of which a careless variance is not zero
    out, others = adapted(memory, batch, root), [0, 1, 3]
    np.testing.assert_allclose(out[:, others], adapted(memory[:, others], batch[:, others], root))
    np.testing.assert_allclose(out[:, 2], np.full(30, batch[:, 2].mean()))


@pytest.mark.parametrize(("n", "b"), [(1, 8), (8, 1), (0, 8), (8, 0)])
def test_fewer_than_two_rows_leave_the_memory(n: int, b: int) -> None:
    assert CovarianceMatching()(torch.randn(n, D), torch.zeros(n), torch.randn(b, D), torch.zeros(b)) is None


@pytest.mark.parametrize(("root", "shrinkage"), CASES)
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


@pytest.mark.parametrize("root", ["principal", "symmetric", "cholesky"])
def test_a_batch_of_nan_leaves_the_rows(root: str) -> None:
    memory = memory_with(CovarianceMatching(root), nonfinite="ignore")
    first, batch = steps(2, (9,))
    memory(torch.from_numpy(first), labels_of(first))
    before, batch[0, 0] = memory.embedding_memory[:9].clone(), np.nan
    memory(torch.from_numpy(batch), labels_of(batch))
    assert torch.equal(memory.embedding_memory[:9], before)


@pytest.mark.parametrize(
    ("options", "message"), [({"root": "qr"}, "root='qr'"), ({"shrinkage": 1.1}, "shrinkage=1.1")]
)
def test_bad_options_name_the_value(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CovarianceMatching(**options)
