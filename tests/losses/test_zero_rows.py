"""Rows of zeros, of a dead or padded image, and rows that are short beside the spread of the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kinds import KINDS, WRAPPERS
from pytorch_metric_learning.losses import MultiSimilarityLoss, NTXentLoss, SupConLoss, TripletMarginLoss
from torch import Tensor, nn

from pml_xbn.adapters import Affine, BaseAdapter, Moments
from pml_xbn.losses import AdaptiveCrossBatchMemory

B, D, M = 12, 8, 40
LOSSES = [NTXentLoss(0.1), SupConLoss(0.1), MultiSimilarityLoss(), TripletMarginLoss()]


def batch(size: int = B) -> tuple[Tensor, Tensor]:
    """ReLU rows whose mean is some spreads long; every fifth one is zero."""
    rows = torch.relu(torch.randn(size, D)) + 1
    rows[::5] = 0
    return rows, torch.arange(size) % 3


def assert_same_step(memory: nn.Module, plain: nn.Module, rows: Tensor, labels: Tensor) -> None:
    first, second = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    loss, expected = memory(first, labels), plain(second, labels)
    assert torch.equal(loss, expected)
    for value in (loss, expected):
        if value.requires_grad:
            value.backward()
    assert first.grad is second.grad is None or torch.equal(first.grad, second.grad)
    assert torch.equal(memory.embedding_memory, plain.embedding_memory)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_first_step_is_that_of_the_plain_memory_bit_for_bit(kind: str, loss: nn.Module) -> None:
    assert_same_step(KINDS[kind].memory(loss, D, M), AdaptiveCrossBatchMemory(loss, D, M), *batch())


@pytest.mark.parametrize("options", [{"delay": 3}, {"warmup": 3}], ids=str)
@pytest.mark.parametrize("kind", WRAPPERS)
def test_rows_are_read_as_they_came_until_something_adapts_them(kind: str, options: dict[str, int]) -> None:
    memory = KINDS[kind].memory(SupConLoss(), D, M, **options)
    plain = AdaptiveCrossBatchMemory(SupConLoss(), D, M, warmup=options.get("warmup", 0))
    for _ in range(3):
        assert_same_step(memory, plain, *batch())


@pytest.mark.parametrize("kind", WRAPPERS)
def test_batches_of_one_row_are_stored_as_they_came(kind: str) -> None:
    memory, plain = KINDS[kind].memory(SupConLoss(), D, M), AdaptiveCrossBatchMemory(SupConLoss(), D, M)
    for _ in range(7):
        assert_same_step(memory, plain, *batch(1))


class Shrink(BaseAdapter):
    """Leaves a row's direction as it is."""

    def map(self, memory: Moments, target: Moments) -> Affine:
        return Affine(torch.full_like(memory.std, 0.9), torch.zeros_like(memory.std))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_zeros_stay_zeros_and_short_rows_keep_their_direction(dtype: torch.dtype) -> None:
    memory = AdaptiveCrossBatchMemory(NTXentLoss(0.1), D, M, memory_dtype=dtype)
    memory.register_memory_hook(Shrink())
    eps, wanted = torch.finfo(dtype).eps, np.zeros((0, D))
    for _ in range(30):
        rows, labels = batch()
        rows[1::5] *= 64 * eps  # still long enough to be told from zeros
        memory(rows, labels)
        wanted = np.concatenate([wanted * 0.9, rows.double().numpy()])[-M:]
    order = np.roll(np.arange(M), -memory.queue_idx)
    found = memory.embedding_memory.double().numpy()[order]
    is_zero = (wanted == 0).all(axis=1)
    assert is_zero.any()
    assert (found[is_zero] == 0).all()
    lengths = np.linalg.norm(wanted, axis=1)
    # By what a row of the usual length is rounded: of all of them, not of the short row itself.
    assert (np.linalg.norm(found - wanted, axis=1) <= 4 * eps * lengths.max()).all()
    cosines = (found * wanted)[~is_zero].sum(axis=1) / lengths[~is_zero]
    assert (cosines / np.linalg.norm(found[~is_zero], axis=1) > 0.99).all()
