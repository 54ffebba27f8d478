"""Groups that are clusters of the memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from float64 import GroupXbn, mean_std
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor

from benchmarks.hooks.cluster_moments import ClusterMatching
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
