from __future__ import annotations

import numpy as np
import pytest
import torch
from kinds import MEMORIES
from pytorch_metric_learning.losses import ContrastiveLoss

from pml_xbn.diagnostics import class_separability, memory_rows


def traces(rows: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """With the scatter matrices written out."""
    d, n = rows.shape[1], len(rows)
    between, within, mean = np.zeros((d, d)), np.zeros((d, d)), rows.mean(axis=0)
    for label in set(labels.tolist()):
        members = rows[labels == label]
        of_class = members.mean(axis=0)
        between += len(members) / n * np.outer(of_class - mean, of_class - mean)
        within += len(members) / n * sum(np.outer(x - of_class, x - of_class) for x in members) / len(members)
    return float(np.trace(between)), float(np.trace(within))


@pytest.mark.parametrize("offset", [0, 100])
def test_criterion_is_the_ratio_of_the_traces(offset: float, dtype: torch.dtype) -> None:
    rows, labels = (torch.randn(15, 4) + offset).to(dtype), torch.arange(15) % 4 * 3
    between, within = traces(rows.double().numpy(), labels.numpy())
    measured = class_separability(rows, labels)
    np.testing.assert_allclose([measured.between, measured.within], [between, within], rtol=1e-6)
    np.testing.assert_allclose(measured.criterion, between / within, rtol=1e-6)


def test_classes_without_spread_are_separated_without_end() -> None:
    centres = torch.tensor([[0.1, 0.7], [0.3, 0.2], [-0.9, 0.1]], dtype=torch.float64)
    for count in (7, 10_000):  # sevenths, and sums, that do not add up exactly
        rows, labels = centres.repeat(count, 1), torch.arange(3 * count) % 3
        assert class_separability(rows, labels).criterion == float("inf")
    rows[4, 1] = torch.nan
    assert all(value.isnan() for value in class_separability(rows, labels))


def test_equal_rows_have_no_separability() -> None:
    assert class_separability(torch.full((21, 2), 0.1, dtype=torch.float64), torch.arange(21) % 3) == (
        0,
        0,
        0,
    )


@pytest.mark.parametrize("memory", MEMORIES)
def test_separability_within_a_memory(memory: str) -> None:
    loss_fn = MEMORIES[memory](ContrastiveLoss(), 4, 20)
    for _ in range(4):
        loss_fn(torch.randn(8, 4, requires_grad=True), torch.arange(8) % 3)
    rows, labels = memory_rows(loss_fn)
    assert len(rows) == 20
    between, within = traces(rows.double().numpy(), labels.numpy())
    np.testing.assert_allclose(class_separability(rows, labels).criterion, between / within, rtol=1e-6)
