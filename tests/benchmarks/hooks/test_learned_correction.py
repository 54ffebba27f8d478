"""A correction from samples that return, against least squares in float64 with the penalty as rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss

from benchmarks.hooks.learned_correction import Kind, LearnedCorrection
from pml_xbn.losses import AdaptiveCrossBatchMemory

N, D, R = 40, 5, 12
Array = np.ndarray


def fitted(predictors: Array, targets: Array, penalty: Array) -> Array:
    """Ridge regression as least squares with rows for the penalty."""
    rows = np.vstack([predictors, np.diag(np.sqrt(penalty))])
    return np.linalg.lstsq(
        rows, np.vstack([targets, np.zeros((len(penalty), targets.shape[1]))]), rcond=None
    )[0]


def expected(kind: Kind, rows: Array, new: Array, ridge: float, rank: int) -> Array:
    moves = new - rows[:R]
    shift = fitted(np.ones((R, 1)), moves, np.array([ridge]))
    centred, left = rows - rows.mean(axis=0), moves - shift
    weights = np.zeros((D, D))
    if kind == "diagonal":
        for j, variance in enumerate(rows.var(axis=0)):
            weights[j, j] = fitted(centred[:R, j : j + 1], left[:, j : j + 1], np.array([ridge * variance]))[
                0, 0
            ]
    if kind == "low rank":
        weights = fitted(centred[:R], left, np.full(D, ridge * rows.var(axis=0).mean()))
        moved = centred[:R] @ weights
        _, vectors = np.linalg.eigh(moved.T @ moved)
        weights = weights @ vectors[:, -rank:] @ vectors[:, -rank:].T
    return rows + shift + centred @ weights


@pytest.mark.parametrize("kind", ["shift", "diagonal", "low rank"])
@pytest.mark.parametrize(("ridge", "rank"), [(3.0, D), (20.0, 2)])
def test_rows_follow_the_samples_that_return(kind: Kind, ridge: float, rank: int) -> None:
    numbers = np.random.default_rng(0)
    rows, new = numbers.normal(size=(N, D)), numbers.normal(size=(R, D)) + 2
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), D, N, memory_dtype=torch.float64)
    memory.register_memory_hook(LearnedCorrection(memory, kind, ridge, rank))
    memory.fill_memory(torch.from_numpy(rows), torch.zeros(N, dtype=torch.int64), torch.arange(N))
    memory(torch.from_numpy(new), torch.zeros(R, dtype=torch.int64), sample_ids=torch.arange(R))
    stored = memory.embedding_memory.numpy()
    np.testing.assert_allclose(stored[R:], expected(kind, rows, new, ridge, rank)[R:], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(stored[:R], new)


@pytest.mark.parametrize("kind", ["shift", "diagonal", "low rank"])
def test_without_samples_that_return_rows_stay(kind: Kind) -> None:
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), D, N)
    memory.register_memory_hook(LearnedCorrection(memory, kind))
    rows = torch.randn(4, D)
    for first in (0, 4):
        memory(rows + first, torch.zeros(4, dtype=torch.int64), sample_ids=torch.arange(first, first + 4))
    assert torch.equal(memory.embedding_memory[:4], rows)
