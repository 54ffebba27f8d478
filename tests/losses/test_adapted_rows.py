"""The rows that every class stores, against a float64 memory built from Python lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from float64 import Memory, Xbn
from kinds import KINDS, Kind
from pytorch_metric_learning.losses import ContrastiveLoss, CrossBatchMemory, SupConLoss

from pml_xbn import XBNWrapper, _arithmetic
from pml_xbn.adapters import MomentMatching

D = 4
CASES = KINDS | {"unit norm": Kind(XBNWrapper, MomentMatching, Xbn, {"normalize_memory": True})}
# (memory size, batch sizes): partial fill, exact fill, wrap with and without overlap, sizes 1 and 2.
SHAPES = {
    "partial": (50, [6] * 5),
    "wraps": (20, [6] * 9),
    "divides": (18, [6] * 8),
    "batch is memory": (6, [6] * 4),
    "ones and twos": (7, [1, 2, 1, 5, 2, 1, 3, 7, 1, 6, 2]),
    "memory of one": (1, [1, 1, 1]),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_rows_follow_the_equation(name: str, shape: str, seed: int, device: torch.device) -> None:
    kind = CASES[name]
    size, batch_sizes = SHAPES[shape]
    ours = kind.memory(ContrastiveLoss(), D, size).to(device)
    reference = Memory(size, D, kind.equation(), unit_norm=name == "unit norm")
    rng = np.random.default_rng(seed)
    for step, b in enumerate(batch_sizes):
        batch = rng.normal(step, 1 + rng.random(D), (b, D)).astype(np.float32)
        labels = rng.integers(0, 5, b)
        ours(torch.tensor(batch, device=device), torch.tensor(labels, device=device))
        reference.step(batch.astype(np.float64), labels)
        assert ours.num_rows == len(reference.rows)
        stored = ours.embedding_memory[: ours.num_rows].cpu().numpy()
        np.testing.assert_allclose(stored, reference.rows, rtol=1e-5, atol=1e-5 * (step + 1))
        assert ours.label_memory[: ours.num_rows].tolist() == reference.labels


def test_loss_is_computed_with_the_adapted_rows(device: torch.device) -> None:
    """PML's class, given our rows as its memory, returns the same loss and gradient."""
    ours = XBNWrapper(SupConLoss(), D, 20).to(device)
    for step in range(5):
        batch = torch.randn(8, D, device=device) + step
        labels = torch.arange(8, device=device) % 4
        first, second = batch.clone().requires_grad_(), batch.clone().requires_grad_()
        queue_idx, filled = ours.queue_idx, ours.has_been_filled
        loss = ours(first, labels)
        loss.backward()
        assert first.grad.any()
        assert not ours.embedding_memory.requires_grad

        pml = CrossBatchMemory(SupConLoss(), D, 20).to(device)
        pml.embedding_memory, pml.label_memory = ours.embedding_memory.clone(), ours.label_memory.clone()
        pml.queue_idx, pml.has_been_filled = queue_idx, filled
        expected = pml(second, labels)
        expected.backward()
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(first.grad, second.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows_at_a_time", [None, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_products_and_lengths_are_those_of_the_rows_without_reading_them(
    dtype: torch.dtype, rows_at_a_time: int | None, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rows_at_a_time is not None:
        numbers = dict.fromkeys(_arithmetic._NUMBERS_AT_A_TIME, rows_at_a_time * D)
        monkeypatch.setattr(_arithmetic, "_NUMBERS_AT_A_TIME", numbers)
    memory = XBNWrapper(SupConLoss(), D, 20, memory_dtype=dtype).to(device)
    for step in range(4):
        memory(3 * torch.randn(6, D, device=device) + 10 * step, torch.arange(6, device=device) % 3)
    rows = memory.queue.contents.rows
    vectors = torch.randn(7, D, device=device).to(rows.dtype)
    read = memory.embedding_memory.double()
    bound = 1e-12 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(
        rows.products(vectors).double(), vectors.double() @ read.T, rtol=bound, atol=bound
    )
    torch.testing.assert_close(rows.lengths(rows.dtype).double(), read.norm(dim=1), rtol=bound, atol=bound)
