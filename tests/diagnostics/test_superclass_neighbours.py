from __future__ import annotations

import numpy as np
import pytest
import torch
from kinds import MEMORIES
from pytorch_metric_learning.losses import ContrastiveLoss

from pml_xbn.diagnostics import memory_rows, superclass_neighbours


def shares(rows: np.ndarray, superclasses: np.ndarray, max_k: int) -> list[float]:
    groups = sorted(set(superclasses.tolist()))
    means = {group: rows[superclasses == group].mean(axis=0) for group in groups}
    hits = np.zeros(max_k)
    for row, own in zip(rows, superclasses, strict=True):
        nearest = sorted(groups, key=lambda group: np.linalg.norm(row - means[group]))
        hits += [own in nearest[:k] for k in range(1, max_k + 1)]
    return list(hits / len(rows))


def test_share_is_that_of_the_sorted_means(dtype: torch.dtype) -> None:
    superclasses = torch.randint(7, (60,)) * 2
    rows = (torch.randn(60, 3) + torch.randn(14, 3)[superclasses]).to(dtype)
    measured = superclass_neighbours(rows, superclasses, max_k=8)
    expected = shares(rows.double().numpy(), superclasses.numpy(), 8)
    np.testing.assert_allclose(measured.numpy(), expected)
    assert 0 < measured[0] < measured[3] < 1
    assert measured[6] == measured[7] == 1  # there are seven superclasses


def test_of_equal_means_the_own_comes_first() -> None:
    rows, superclasses = torch.randn(300, 3).repeat(3, 1), torch.arange(900) // 300
    order = torch.randperm(900)  # in which means differ by rounding
    rows, superclasses = rows[order], superclasses[order]
    assert superclass_neighbours(rows, superclasses, max_k=3).tolist() == [1, 1, 1]
    rows[7, 1] = torch.nan
    assert superclass_neighbours(rows, superclasses, max_k=3).isnan().all()


@pytest.mark.parametrize("memory", MEMORIES)
def test_neighbours_within_a_memory(memory: str) -> None:
    loss_fn = MEMORIES[memory](ContrastiveLoss(), 4, 20)
    superclass_of = torch.tensor([0, 1, 0, 1, 2])
    for _ in range(3):
        loss_fn(torch.randn(8, 4, requires_grad=True), torch.arange(8) % 5)
    rows, labels = memory_rows(loss_fn)
    measured = superclass_neighbours(rows, superclass_of[labels], max_k=2)
    expected = shares(rows.double().numpy(), superclass_of[labels].numpy(), 2)
    np.testing.assert_allclose(measured.numpy(), expected)
