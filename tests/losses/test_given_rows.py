"""Rows that somebody assigns, or writes into the value of ``embedding_memory``, are trained on and saved."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from every_memory import DTYPES, EVERY, D, M, are_equal, assert_same_runs, batch, state, step
from float64 import Memory
from kinds import KINDS
from torch import Tensor

from pml_xbn.losses import AdaptiveCrossBatchMemory


def new_rows(far: float = 30.0) -> Tensor:
    """Of another mean and spread than those of the batches."""
    return far + 7 * torch.randn(M, D, generator=torch.Generator().manual_seed(99))


def assigned(memory: AdaptiveCrossBatchMemory) -> None:
    memory.embedding_memory = new_rows()


def assigned_in_float64(memory: AdaptiveCrossBatchMemory) -> None:
    memory.embedding_memory = new_rows().double().requires_grad_()


def one_row(memory: AdaptiveCrossBatchMemory) -> None:
    memory.embedding_memory[3] = new_rows()[3]


def copied(memory: AdaptiveCrossBatchMemory) -> None:
    memory.embedding_memory.copy_(new_rows())


def by_slice(memory: AdaptiveCrossBatchMemory) -> None:
    chosen = memory.embedding_memory[:4]
    chosen.mul_(3).add_(1)


def one_number(memory: AdaptiveCrossBatchMemory) -> None:
    memory.embedding_memory.view(-1)[0] -= 20


def in_many_pieces(memory: AdaptiveCrossBatchMemory) -> None:
    value = memory.embedding_memory
    value[0] = new_rows()[0]
    memory.state_dict()
    value[1] = new_rows()[1]
    copy.deepcopy(memory)
    memory.embedding_memory[2] = new_rows()[2]
    value[3] = new_rows()[3]


WAYS = [assigned, assigned_in_float64, one_row, copied, by_slice, one_number, in_many_pieces]


def follow(memory: AdaptiveCrossBatchMemory, reference: Memory, numbers: range) -> None:
    """Goes on with both, and compares the rows after every step."""
    for number in numbers:
        embeddings, labels = batch(number)
        step(memory, number)
        reference.step(embeddings.detach().double().numpy(), labels.tolist())
        rows = memory.embedding_memory[: memory.num_rows].double().numpy()
        np.testing.assert_allclose(rows, reference.rows, rtol=1e-5, atol=1e-4)
        assert memory.label_memory[: memory.num_rows].tolist() == reference.labels


@pytest.mark.parametrize("num_steps", [1, 2, 4])  # partly filled, and full
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_written_are_those_that_are_adapted(kind: str, way: Callable, num_steps: int) -> None:
    memory, reference = EVERY[kind](), Memory(M, D, KINDS[kind].equation())
    follow(memory, reference, range(num_steps))
    before = memory.embedding_memory.clone()
    way(memory)
    n = memory.num_rows
    assert not torch.equal(memory.embedding_memory[:n], before[:n])
    reference.rows = memory.embedding_memory[:n].double().numpy().copy()
    duplicate, resumed = copy.deepcopy(memory), EVERY[kind]()
    resumed.load_state_dict(memory.state_dict())
    assert are_equal(state(memory), state(duplicate))
    follow(memory, reference, range(num_steps, num_steps + 5))
    for twin in (duplicate, resumed):
        for number in range(num_steps, num_steps + 5):
            step(twin, number)
        assert are_equal(state(twin), state(memory))


@pytest.mark.parametrize("way", WAYS)
def test_they_are_read_as_they_were_written(way: Callable) -> None:
    memory = EVERY["xbn"]()
    for number in range(4):
        step(memory, number)
    expected = memory.embedding_memory.clone()
    if way is by_slice:
        expected[:4] = expected[:4] * 3 + 1
    elif way is one_number:
        expected[0, 0] -= 20
    else:
        indices = {one_row: [3], in_many_pieces: [0, 1, 2, 3]}
        chosen = indices.get(way, list(range(M)))
        expected[chosen] = new_rows()[chosen]
    way(memory)
    assert torch.equal(memory.embedding_memory, expected)
    assert torch.equal(copy.deepcopy(memory).embedding_memory, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_steps", [1, 4])
def test_the_spread_of_far_rows_is_kept_in_every_dtype(num_steps: int, dtype: torch.dtype) -> None:
    """Rows that are not there, which read zero, have no say in how the others are rounded."""
    memory = EVERY["xbn"](memory_dtype=dtype)
    for number in range(num_steps):
        step(memory, number)
    n, rows = memory.num_rows, new_rows(far=3e4)
    rows[n:] = 0
    memory.embedding_memory.copy_(rows)
    stored = memory.embedding_memory[:n]
    eps = max(4 * torch.finfo(dtype).eps, 3e4 * 2.0**-23)
    torch.testing.assert_close(stored.std(dim=0), rows[:n].std(dim=0).to(stored), rtol=eps, atol=0)
    torch.testing.assert_close(stored, rows[:n].to(stored), rtol=0, atol=7 * 3 * eps)


@pytest.mark.parametrize("between", ["step", "save", "eval"])
def test_a_value_of_an_earlier_step_is_nobodys(between: str) -> None:
    memory, twin = EVERY["per class"](), EVERY["per class"]()
    for number in range(3):
        step(memory, number)
        step(twin, number)
    value = memory.embedding_memory
    for which in (memory, twin):
        step(which, 3)
    value.fill_(5.0)
    assert are_equal(state(memory), state(twin))
    if between == "save":
        memory.state_dict()
    elif between == "eval":  # a call, too, though it stores nothing
        value = memory.embedding_memory
        memory.eval()(*batch(0))
        memory.train()
    value.fill_(6.0)
    assert_same_runs(memory, twin)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", EVERY)
def test_to_look_at_the_rows_changes_nothing(kind: str, dtype: torch.dtype) -> None:
    memory, twin = EVERY[kind](memory_dtype=dtype), EVERY[kind](memory_dtype=dtype)
    for number in range(8):
        for a, b in zip(step(memory, number), step(twin, number), strict=True):
            assert torch.equal(a, b)
        value = memory.embedding_memory
        assert memory.embedding_memory is value
        memory.embedding_memory.sum()
        memory.state_dict()
        copy.deepcopy(memory)
        assert are_equal(state(memory), state(twin))


def test_a_row_of_nan_can_be_written_and_written_over() -> None:
    memory = EVERY["plain"](nonfinite="ignore")
    for number in range(3):
        step(memory, number)
    memory.embedding_memory[2] = 0.0
    memory.embedding_memory[2] = torch.nan
    assert memory.embedding_memory[2].isnan().all()
    memory.embedding_memory[2] = 1.0
    assert (memory.embedding_memory[2] == 1).all()
    resumed = EVERY["plain"]()
    resumed.load_state_dict(memory.state_dict())
    assert resumed.embedding_memory.isfinite().all()


def test_rows_of_another_shape_are_refused() -> None:
    memory = EVERY["xbn"]()
    step(memory, 0)
    before = state(memory)
    with pytest.raises(ValueError, match=r"embedding_memory of shape \(3, 4\): assign \(14, 4\)"):
        memory.embedding_memory = torch.zeros(3, D)
    assert are_equal(state(memory), before)


def test_rows_that_are_written_before_labels_are_assigned_are_stored() -> None:
    memory = EVERY["plain"]()
    step(memory, 0)
    memory.embedding_memory[0] = 7.0
    memory.label_memory = torch.arange(M)
    assert memory.embedding_memory[0].tolist() == [7.0] * D


def test_labels_of_another_length_are_refused() -> None:
    memory = EVERY["plain"]()
    with pytest.raises(ValueError, match=r"label_memory has shape \(3,\)"):
        memory.label_memory = torch.arange(3)
    with pytest.raises(ValueError, match=r"label_memory has dtype torch.float32"):
        memory.label_memory = torch.zeros(M)
    with pytest.raises(TypeError, match=r"embedding_memory is a ndarray"):
        memory.embedding_memory = torch.zeros(M, D).numpy()
