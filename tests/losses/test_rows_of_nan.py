"""With ``nonfinite="ignore"``, a row of NaN stops adaptation for as long as it is in memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from every_memory import BATCH_SIZE, DTYPES, EVERY, D, M, are_equal, batch, state
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor

from pml_xbn import XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory
from pml_xbn.memory._rows import Rows

OF_ALL_ROWS = ["xbn", "centre"]
# Sums that a group has spoilt stay so until the rows are stored anew.
GROUPED = ["per class", "absent stay", "super-class"]


def step(memory: AdaptiveCrossBatchMemory, number: int, bad: float | None = None) -> None:
    embeddings, labels = (x.detach() for x in batch(number))
    if bad is not None:
        embeddings[1, 2] = bad
    memory(embeddings, labels)


def is_adapted(memory: AdaptiveCrossBatchMemory, dimension: int) -> bool:
    """Whether a step would take the rows to a batch that is far away, as it does of finite ones."""
    copied, (embeddings, labels) = copy.deepcopy(memory), batch(99)
    copied(embeddings.detach() + 1e4, labels)
    is_older = torch.ones(memory.memory_size, dtype=torch.bool)
    is_older[copied.curr_batch_idx] = False
    values = copied.embedding_memory[: memory.num_rows][is_older[: memory.num_rows], dimension]
    return bool(values[values.isfinite()].median() > 1e3)


def is_ordinary(memory: AdaptiveCrossBatchMemory) -> Tensor:
    return memory.embedding_memory.abs() < 1e30


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("when", [0, 1, 2, 3, 4])  # at other positions of the queue
@pytest.mark.parametrize("kind", OF_ALL_ROWS)
def test_adaptation_goes_on_a_wrap_around_after_the_row_has_left(kind: str, when: int, bad: float) -> None:
    memory = EVERY[kind](nonfinite="ignore")
    for number in range(when):
        step(memory, number)
    step(memory, when, bad)
    assert not is_adapted(memory, 2)
    number = when
    # inf may be stored as the largest number that there is.
    assert (~is_ordinary(memory)).sum() == 1
    while not is_ordinary(memory).all():
        assert not is_adapted(memory, 2)
        number += 1
        step(memory, number)
    assert number - when <= -(-M // BATCH_SIZE)
    for later in range(1, 1 + -(-M // BATCH_SIZE)):  # until the rows are measured anew
        step(memory, number + later)
    assert is_adapted(memory, 2)
    # The other dimensions have not been without it.
    assert is_adapted(memory, 0)
    for later in range(1, 10):
        step(memory, number + later)


@pytest.mark.parametrize("kind", GROUPED)
def test_with_groups_it_goes_on_after_two_wrap_arounds_at_the_latest(kind: str) -> None:
    memory = EVERY[kind](nonfinite="ignore")
    for number in range(3):
        step(memory, number)
    step(memory, 3, torch.nan)
    for number in range(4, 4 + 2 * -(-M // BATCH_SIZE)):
        step(memory, number)
    assert memory.embedding_memory.isfinite().all()
    if kind != "absent stay":
        assert is_adapted(memory, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [*OF_ALL_ROWS, *GROUPED])
def test_a_checkpoint_with_a_row_of_nan_resumes(kind: str, dtype: torch.dtype) -> None:
    memory, resumed = (EVERY[kind](nonfinite="ignore", memory_dtype=dtype) for _ in range(2))
    for number in range(4):
        step(memory, number, torch.nan if number == 2 else None)
    resumed.load_state_dict(memory.state_dict())
    for number in range(4, 12):
        for which in (memory, resumed):
            step(which, number)
        ours, theirs = ({k: v.nan_to_num(7.0) for k, v in state(x).items()} for x in (memory, resumed))
        assert are_equal(ours, theirs)
    assert memory.embedding_memory.shape == (M, D)
    assert memory.embedding_memory.isfinite().all()


@pytest.mark.parametrize("kind", ["momentum", "axbn"])
def test_an_estimate_forgets_nan(kind: str) -> None:
    memory = EVERY[kind](nonfinite="ignore")
    step(memory, 0)
    step(memory, 1, torch.nan)
    for number in range(2, 9):
        step(memory, number)
    assert memory.embedding_memory.isfinite().all()
    assert is_adapted(memory, 2)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf])
def test_a_row_of_inf_does_not_have_all_rows_stored_anew_in_every_step(
    bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would help nothing, and takes as long as the rest of the step."""
    memory = XBNWrapper(SupConLoss(), D, 20 * BATCH_SIZE, nonfinite="ignore")
    for number in range(8):
        step(memory, number)
    step(memory, 8, bad)
    numbers = stored_anew(monkeypatch)
    for number in range(9, 19):  # in which the queue does not wrap around
        step(memory, number)
    assert not numbers


def test_rows_of_float64_are_stored_anew_once_in_the_first_step_that_adapts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = EVERY["xbn"](memory_dtype=torch.float64)
    step(memory, 0)
    numbers = stored_anew(monkeypatch)
    step(memory, 1)
    assert len(numbers) == 1


def stored_anew(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets a number each time that rows are stored anew."""
    numbers: list[int] = []
    write = Rows.written_standardized_

    def counted(rows: Rows, *arguments: Any) -> Rows:
        numbers.append(len(numbers))
        return write(rows, *arguments)

    monkeypatch.setattr(Rows, "written_standardized_", counted)
    return numbers
