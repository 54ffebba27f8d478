"""A rank that dies or stays away ends the step of the others with an error."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from ranks import on_ranks
from torch import distributed, nn

from pml_xbn import XBNWrapper
from pml_xbn.memory._rows import Rows

SECONDS = 30  # after which the others have raised
WAITED = r"XBNWrapper.forward waited in \w+ for the other ranks"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stay() -> None:
    time.sleep(60)


def state_of(loss_fn: Any) -> str:
    return str([loss_fn.embedding_memory, loss_fn.num_calls, loss_fn.queue_idx, loss_fn.adapter.num_batches])


def check_raises(loss_fn: Any, *batch: torch.Tensor) -> None:
    """In time, with an error that names the call; nothing has changed."""
    before, begin = state_of(loss_fn), time.monotonic()
    with pytest.raises(RuntimeError, match=WAITED):
        loss_fn(*batch)
    assert time.monotonic() - begin < SECONDS
    assert state_of(loss_fn) == before


@pytest.mark.parametrize("option", ["gather_distributed", "shard_distributed"])
@pytest.mark.parametrize("lose", [die, stay])
@on_ranks(3, group_timeout=5, lost=1)
def test_a_lost_rank_ends_the_step_of_the_others(option: str, lose: Callable[[], None]) -> None:
    """It is lost in the fourth step."""
    loss_fn: Any = XBNWrapper(SupConLoss(), 4, 32, **{option: True})
    batch = torch.randn(5, 4, requires_grad=True), torch.arange(5) % 2
    for _ in range(3):
        loss_fn(*batch)
    if distributed.get_rank() == 1:
        with patch.object(Rows, "written_", side_effect=lambda *_: lose()):
            loss_fn(*batch)
    else:
        check_raises(loss_fn, *batch)


@pytest.mark.parametrize("option", ["gather_distributed", "shard_distributed"])
@on_ranks(2, group_timeout=3)
def test_a_rank_without_batches_in_join_ends_the_step_of_the_other(option: str) -> None:
    """The first one runs out of batches; the error of the other names what to pass."""
    rank = distributed.get_rank()
    loss_fn: Any = XBNWrapper(SupConLoss(), 4, 32, **{option: True})
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    states = []

    def train() -> None:
        for _ in range(3 + rank):
            loss_fn(model(torch.randn(5, 4)), torch.arange(5) % 2).backward()
            states.append(state_of(loss_fn))

    begin = time.monotonic()
    message = r"XBNWrapper.forward waited .*throw_on_early_termination=True" if rank == 1 else None
    with pytest.raises(RuntimeError, match=message), model.join():
        train()
    assert time.monotonic() - begin < SECONDS
    assert len(states) == 3
    assert state_of(loss_fn) == states[-1]


@pytest.mark.parametrize("option", ["gather_distributed", "shard_distributed"])
@on_ranks(4, group_timeout=5, lost=3)
def test_a_lost_rank_ends_no_step_of_another_group(option: str) -> None:
    """The other one of its group raises, and the two of another group go on."""
    rank = distributed.get_rank()
    groups = [distributed.new_group(ranks, timeout=timedelta(seconds=5)) for ranks in ([0, 2], [1, 3])]
    loss_fn: Any = XBNWrapper(SupConLoss(), 4, 32, process_group=groups[rank % 2], **{option: True})
    batch = torch.randn(5, 4, requires_grad=True), torch.arange(5) % 2
    for _ in range(3):
        loss_fn(*batch)
    if rank == 3:
        die()
    if rank == 1:
        check_raises(loss_fn, *batch)
    else:
        for _ in range(3):
            loss_fn(*batch)
        assert loss_fn.num_calls == 6
