from __future__ import annotations

import numpy as np
import pytest
import torch
from memories import MEMORIES
from pytorch_metric_learning.losses import ContrastiveLoss

from pml_xbn.diagnostics import embedding_distances, memory_rows


def expected_of(rows: np.ndarray, labels: list[int]) -> tuple[float, float]:
    between = [np.linalg.norm(a - b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    to_mean = []
    for row, label in zip(rows, labels, strict=True):
        of_class = [other for other, its in zip(rows, labels, strict=True) if its == label]
        to_mean.append(np.linalg.norm(row - sum(of_class) / len(of_class)))
    return float(np.mean(between)), float(np.mean(to_mean))


@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize("chunk", [4, 11, 1024])
def test_distances_are_those_of_every_pair(
    chunk: int, offset: float, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setitem(embedding_distances.__globals__, "_CHUNK", chunk)
    rows = (torch.randn(11, 4) + offset).to(dtype)
    labels = torch.tensor([5, 5, 9, 0, 0, 0, 5, 9, 2, 0, 5])
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
