"""Rows that take a step against the gradient of the loss."""

from __future__ import annotations

import copy

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch.nn.functional import normalize

from benchmarks.papers.gradient_update import GradientUpdate

ALPHA, D = 0.3, 5


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    ids = torch.randperm(12, generator=draw)[:4]
    rows = normalize(torch.randn(4, D, generator=draw, dtype=torch.float64))
    return rows, ids % 3, ids


@pytest.mark.parametrize("options", [{}, {"update": "average", "update_momentum": 0.5}], ids=str)
def test_rows_are_those_of_the_supplement(options: dict) -> None:
    memory = GradientUpdate(
        ContrastiveLoss(0.0, 1.5), D, 20, update_learning_rate=ALPHA, memory_dtype=torch.float64, **options
    )
    stored: dict[int, torch.Tensor] = {}
    for step in range(8):
        embeddings, labels, ids = batch(step)
        m = options.get("update_momentum", 0.0)
        for row, sample in zip(embeddings, ids.tolist(), strict=True):
            stored[sample] = normalize(torch.lerp(row, stored.get(sample, row), m), dim=0)
        rows = torch.stack(list(stored.values())).requires_grad_()
        samples = torch.tensor(list(stored))
        # PML's ContrastiveLoss by hand: means over the pairs whose loss is not zero.
        distances = torch.linalg.vector_norm(embeddings.unsqueeze(1) - normalize(rows), dim=2)
        is_same = labels.unsqueeze(1) == samples % 3
        far = distances[is_same & (ids.unsqueeze(1) != samples)]
        near = torch.relu(1.5 - distances[~is_same])
        loss = sum(x[x > 0].mean() for x in (far, near) if (x > 0).any())
        found = memory(embeddings.clone().requires_grad_(), labels, sample_ids=ids)
        torch.testing.assert_close(found, loss.detach(), rtol=1e-6, atol=1e-8)
        (gradient,) = torch.autograd.grad(loss, rows)
        stored = dict(zip(stored, normalize(rows.detach() - ALPHA * gradient), strict=True))
        order = memory.id_memory[: memory.num_rows].tolist()
        expected = torch.stack([stored[sample] for sample in order])
        torch.testing.assert_close(memory.embedding_memory[: len(order)], expected, rtol=1e-5, atol=1e-6)


def test_a_resumed_run_goes_on_bit_for_bit() -> None:
    memory = GradientUpdate(ContrastiveLoss(), D, 20, update_learning_rate=ALPHA)
    for step in range(6):
        if step == 3:
            resumed = GradientUpdate(ContrastiveLoss(), D, 20, update_learning_rate=ALPHA)
            resumed.load_state_dict(copy.deepcopy(memory.state_dict()))
        for each in (memory, resumed) if step >= 3 else (memory,):
            each(*batch(step)[:2], sample_ids=batch(step)[2])
    assert torch.equal(memory.embedding_memory, resumed.embedding_memory)
