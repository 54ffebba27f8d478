"""Finite input never gives a NaN or inf, in memory, loss or gradient."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from kinds import ADAPTERS, KINDS
from pytorch_metric_learning.losses import ContrastiveLoss, SupConLoss
from torch import Tensor

from pml_xbn import PerClassXBN, XBNWrapper

MEMORIES = {name: KINDS[name].memory for name in ADAPTERS} | {
    "unit norm": partial(XBNWrapper, normalize_memory=True),
    "slow, with the batch's loss": partial(XBNWrapper, momentum=0.9, batch_loss_weight=1.0),
    "own moments": partial(PerClassXBN, mean_lambda=0.0, std_lambda=0.0),
}


@pytest.mark.parametrize("loss", [SupConLoss, ContrastiveLoss])
@pytest.mark.parametrize("name", MEMORIES)
@settings(max_examples=40)
@given(data=st.data(), memory_size=st.integers(5, 12))
def test_finite_batches_stay_finite(name: str, loss: type, data: st.DataObject, memory_size: int) -> None:
    loss_fn = MEMORIES[name](loss(), 3, memory_size)
    # PML's own normalisation overflows beyond the square root of float32's largest number.
    floats = st.floats(-(2.0**50), 2.0**50, width=32) | st.sampled_from([0.0, 1.0, -1.0, 2.0**-126])
    for _ in range(data.draw(st.integers(1, 4))):
        b = data.draw(st.integers(1, 5))
        embeddings = torch.from_numpy(data.draw(arrays.arrays("float32", (b, 3), elements=floats)))
        embeddings.requires_grad_()
        labels = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=b, max_size=b)))
        value = loss_fn(embeddings, labels)
        if value.requires_grad:
            value.backward()
            assert torch.isfinite(embeddings.grad).all()
        assert torch.isfinite(value)
        assert torch.isfinite(loss_fn.embedding_memory).all()


@pytest.mark.parametrize("name", MEMORIES)
def test_a_row_of_zeros_that_is_stored_far_out_has_no_direction(name: str) -> None:
    loss_fn, labels = MEMORIES[name](SupConLoss(), 3, 5), torch.zeros(2, dtype=torch.int64)
    for values in ([[1.0, 1, 0], [1, 1, 1]], [[0.0, 0, 0], [0, 0, 0]], [[0.0, 0, 2.476e14], [0, 0, 0]]):
        embeddings = torch.tensor(values, requires_grad=True)
        loss_fn(embeddings, labels).backward()
        assert embeddings.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e150, 1e154, 1e300])
@pytest.mark.parametrize("name", MEMORIES)
def test_rows_in_float64_whose_squares_overflow_are_refused_and_not_stored(name: str, scale: float) -> None:
    loss_fn, labels = MEMORIES[name](SupConLoss(), 3, 16, memory_dtype=torch.float64), torch.arange(8) % 3
    loss_fn(torch.randn(8, 3, dtype=torch.float64), labels)
    before = {
        name: value.clone() for name, value in loss_fn.state_dict().items() if isinstance(value, Tensor)
    }
    with pytest.raises(ValueError, match="numbers beyond"):
        loss_fn(torch.randn(8, 3, dtype=torch.float64) * scale, labels)
    assert all(torch.equal(loss_fn.state_dict()[name], value) for name, value in before.items())
    assert loss_fn(torch.randn(8, 3, dtype=torch.float64) * 1e3, labels).isfinite()
