"""Groups that are clusters of the memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from float64 import GroupXbn, mean_std
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor

from benchmarks.hooks.cluster_moments import ClusterMatching
from pml_xbn.adapters import MomentMatching
from pml_xbn.losses import AdaptiveCrossBatchMemory

BLOBS = torch.tensor([[0.0, 0.0, 9.0], [9.0, 0.0, 0.0], [0.0, 9.0, 0.0]], dtype=torch.float64)


def blobs(n: int, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Rows around three points, and of which; labels would tell something else."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.arange(n) % 3
    return BLOBS[which] + scale * torch.randn(n, 3, generator=generator, dtype=torch.float64), which


def standardized(rows: np.ndarray) -> np.ndarray:
    mean, std = mean_std(rows)
    return (rows - mean) / std


def nearest(rows: np.ndarray, centroids: np.ndarray) -> list[int]:
    return [int(np.argmin([((row - c) ** 2).sum() for c in centroids])) for row in rows]


@pytest.mark.parametrize(("mean_lambda", "std_lambda"), [(0.0, 0.0), (0.3, 0.6), (0.5, 1.0)])
def test_rows_take_the_map_of_their_cluster(mean_lambda: float, std_lambda: float) -> None:
    adapter = ClusterMatching(4, 5, 3, mean_lambda, std_lambda)
    reference = GroupXbn(mean_lambda, std_lambda)
    rng = np.random.default_rng(0)
    for step in range(8):
        memory = rng.normal(step, 1 + rng.random(4), (40, 4))
        batch = rng.normal(-step, 1 + rng.random(4), (12, 4))
        out = adapter(*(torch.from_numpy(x) for x in (memory, np.zeros(40), batch, np.zeros(12))))
        groups = (nearest(standardized(x), adapter.centroids.numpy()) for x in (memory, batch))
        in_memory, in_batch = groups
        assert len(set(in_memory)) == 5
        np.testing.assert_allclose(out.numpy(), reference(memory, in_memory, batch, in_batch), rtol=1e-9)


def test_centroids_are_means_of_their_rows() -> None:
    adapter = ClusterMatching(3, num_clusters=4)
    memory, labels = torch.randn(60, 3, dtype=torch.float64), torch.zeros(60)
    adapter(memory, labels, memory[:8], labels[:8])
    rows = standardized(memory.numpy())
    groups = np.array(nearest(rows, adapter.centroids.numpy()))
    means = np.array([rows[groups == k].mean(axis=0) for k in range(4)])
    np.testing.assert_allclose(adapter.centroids.numpy(), means, atol=1e-6)


def test_clusters_are_found_whatever_the_labels() -> None:
    adapter = ClusterMatching(3, num_clusters=3, mean_lambda=0.0, std_lambda=0.0)
    (memory, which), (batch, of_batch) = blobs(60), blobs(15, seed=1, scale=0.5)
    out = adapter(memory, torch.arange(60), batch + 5, torch.arange(15))
    for blob in range(3):
        expected = torch.std_mean(batch[of_batch == blob] + 5, dim=0)
        torch.testing.assert_close(torch.std_mean(out[which == blob], dim=0), expected)


@settings(max_examples=30)
@given(seed=st.integers(0, 999), n=st.integers(2, 40), b=st.integers(2, 12))
def test_one_cluster_is_xbn(seed: int, n: int, b: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    memory, batch = (torch.randn(k, 3, generator=generator, dtype=torch.float64) for k in (n, b))
    assume(memory.std(dim=0).min() > 1e-2)  # XBN's sums round a spread that is small beside the mean
    inputs = memory, torch.arange(n), 2 * batch + 1, torch.arange(b)
    for mean_lambda, std_lambda in ((0.0, 0.0), (0.5, 1.0)):
        one = ClusterMatching(3, 1, mean_lambda=mean_lambda, std_lambda=std_lambda)
        torch.testing.assert_close(one(*inputs), MomentMatching()(*inputs))


@settings(max_examples=30)
@given(
    scales=st.lists(st.floats(0.05, 20), min_size=3, max_size=3),
    shifts=st.lists(st.floats(-50, 50), min_size=3, max_size=3),
)
def test_a_drift_by_scale_and_shift_changes_nothing(scales: list[float], shifts: list[float]) -> None:
    """Neither what belongs to a cluster, after the clustering, nor where its rows go."""
    scale, shift = torch.tensor(scales).double(), torch.tensor(shifts).double()
    here, drifted = (ClusterMatching(3, 3, mean_lambda=0.0) for _ in range(2))
    for seed in range(3):
        (memory, _), (batch, _) = blobs(30, seed), blobs(9, seed + 50)
        inputs = torch.zeros(30), batch, torch.zeros(9)
        expected = here(memory, *inputs)
        if seed == 0:
            assert drifted(memory, *inputs) is not None  # clusters are found before the drift
        else:
            torch.testing.assert_close(drifted(scale * memory + shift, *inputs), expected)


def test_centroids_are_found_anew_every_so_many_steps() -> None:
    adapter = ClusterMatching(3, num_clusters=3, cluster_every=4)
    found = []
    for step in range(9):
        memory, labels = blobs(30, seed=step)
        adapter(memory, labels, memory[:6], labels[:6])
        found.append(adapter.centroids.clone())
    changes = [step for step in range(1, 9) if not torch.equal(found[step], found[step - 1])]
    assert changes == [4, 8]
    # From where they were: none has changed its place with another.
    assert (found[8] - found[0]).norm(dim=1).max() < 0.5


def test_with_fewer_rows_than_clusters_all_are_one_group() -> None:
    adapter = ClusterMatching(3, num_clusters=9, mean_lambda=0.0, std_lambda=0.0)
    memory, labels = blobs(8)
    inputs = memory, labels, memory[:4] + 1, labels[:4]
    torch.testing.assert_close(adapter(*inputs), MomentMatching()(*inputs))
    assert adapter.num_steps == 0


def test_rows_that_are_nan_leave_the_centroids() -> None:
    adapter = ClusterMatching(3, num_clusters=3, cluster_every=1)
    memory, labels = blobs(30)
    adapter(memory, labels, memory[:6], labels[:6])
    before = adapter.centroids.clone()
    adapter(memory.index_fill(0, torch.tensor([4]), torch.nan), labels, memory[:6], labels[:6])
    assert torch.equal(adapter.centroids, before)


def test_the_seed_decides() -> None:
    memory, labels = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(200)
    first, same, other = (ClusterMatching(3, 8, seed=seed) for seed in (0, 0, 1))
    for adapter in (first, same, other):
        adapter(memory, labels, memory[:20], labels[:20])
    assert torch.equal(first.centroids, same.centroids)
    assert not torch.equal(first.centroids, other.centroids)


def test_the_state_of_a_memory_has_a_fixed_shape() -> None:
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), 3, 20)
    memory.register_memory_hook(ClusterMatching(3, num_clusters=3))
    before = {name: value.shape for name, value in memory.state_dict().items()}
    for seed in range(4):
        rows, labels = blobs(8, seed)
        memory(rows.float(), labels)
    assert memory.memory_hook_0.num_steps == 3
    assert {name: value.shape for name, value in memory.state_dict().items()} == before


@pytest.mark.parametrize(("n", "b"), [(1, 8), (8, 1)])
def test_fewer_than_two_rows_leave_the_memory(n: int, b: int) -> None:
    assert ClusterMatching(3)(torch.randn(n, 3), torch.zeros(n), torch.randn(b, 3), torch.zeros(b)) is None


def test_resume_continues_bit_for_bit() -> None:
    memory, resumed = (AdaptiveCrossBatchMemory(ContrastiveLoss(), 3, 20) for _ in range(2))
    for each in (memory, resumed):
        each.register_memory_hook(ClusterMatching(3, num_clusters=3, cluster_every=3))
    for seed in range(12):
        rows, labels = blobs(8, seed)
        if seed == 5:
            resumed.load_state_dict(memory.state_dict())
        for each in (memory, resumed)[: 2 if seed >= 5 else 1]:
            each(rows.float(), labels)
    assert torch.equal(memory.embedding_memory, resumed.embedding_memory)
