from __future__ import annotations

import numpy as np
import pytest
import torch
from kinds import MEMORIES
from pytorch_metric_learning.losses import ContrastiveLoss

from pml_xbn.diagnostics import embedding_distances, memory_rows


def expected_of(rows: np.ndarray, labels: list[int]) -> tuple[float, float]:
    distances = np.linalg.norm(rows[:, None] - rows, axis=2)
    between = distances.sum() / (len(rows) * (len(rows) - 1))
    of_class = np.array(labels)
    to_mean = [
        np.linalg.norm(row - rows[of_class == label].mean(axis=0))
        for row, label in zip(rows, labels, strict=True)
    ]
    return float(between), float(np.mean(to_mean))


@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize("size", [11, 1027])  # which is more than are compared at once
def test_distances_are_those_of_every_pair(size: int, offset: float, dtype: torch.dtype) -> None:
    rows = (torch.randn(size, 4) + offset).to(dtype)
    labels = torch.arange(size) ** 2 % 7
    measured = embedding_distances(rows, labels)
    expected = expected_of(rows.double().numpy(), labels.tolist())
    np.testing.assert_allclose([float(mean) for mean in measured], expected, rtol=1e-6)


def test_equal_rows_are_at_no_distance() -> None:
    measured = embedding_distances(torch.full((40, 3), 0.1), torch.arange(40) % 2)
    np.testing.assert_allclose([float(mean) for mean in measured], 0, atol=1e-12)


@pytest.mark.parametrize("memory", MEMORIES)
def test_distances_within_a_memory(memory: str) -> None:
    loss_fn = MEMORIES[memory](ContrastiveLoss(), 4, 20)
    for _ in range(2):
        loss_fn(torch.randn(8, 4, requires_grad=True), torch.arange(8) % 3)
    rows, labels = memory_rows(loss_fn)
    assert len(rows) == 16
    measured = embedding_distances(rows, labels)
    expected = expected_of(rows.double().numpy(), labels.tolist())
    np.testing.assert_allclose([float(mean) for mean in measured], expected, rtol=1e-6)
