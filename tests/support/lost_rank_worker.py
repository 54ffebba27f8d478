"""What ranks see of another one that dies, or does not come, in the middle of a step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import distributed, nn

from pml_xbn import XBNWrapper
from pml_xbn.memory._rows import Rows


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stay() -> None:
    time.sleep(60)


def check(folder: Path, option: str, lose: Callable[[], None], seconds: float) -> None:
    """The second rank is lost in the fourth step; the others end it with an error that names the call."""
    rank = distributed.get_rank()
    loss_fn: Any = XBNWrapper(SupConLoss(), 4, 32, **{option: True})
    batch = torch.randn(5, 4, requires_grad=True), torch.arange(5) % 2
    for _ in range(3):
        loss_fn(*batch)
    before = state_of(loss_fn)
    put = Rows.written_

    def lost(*arguments: Any) -> Rows:
        lose()
        return put(*arguments)

    begin = time.monotonic()
    put_or_lost = patch.object(Rows, "written_", lost if rank == 1 else put)
    message = r"XBNWrapper.forward waited in \w+ for the other ranks"
    with put_or_lost, pytest.raises(RuntimeError, match=message):
        loss_fn(*batch)
    assert time.monotonic() - begin < seconds
    assert state_of(loss_fn) == before
    (folder / f"rank {rank}").touch()
    os._exit(0)  # there is no barrier to come to


def check_uneven_inputs(folder: Path, option: str, seconds: float) -> None:
    """The first rank runs out of batches within ``join()``; the other one's error names what to pass."""
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
    assert time.monotonic() - begin < seconds
    assert len(states) == 3
    assert state_of(loss_fn) == states[-1]
    (folder / f"rank {rank}").touch()
    os._exit(0)  # there is no barrier to come to


def check_groups(folder: Path, option: str, seconds: float) -> None:
    """The last of four ranks dies; the other one of its group raises, and the two of another group go on."""
    rank = distributed.get_rank()
    groups = [distributed.new_group(ranks, timeout=timedelta(seconds=5)) for ranks in ([0, 2], [1, 3])]
    loss_fn: Any = XBNWrapper(SupConLoss(), 4, 32, process_group=groups[rank % 2], **{option: True})
    batch = torch.randn(5, 4, requires_grad=True), torch.arange(5) % 2
    for _ in range(3):
        loss_fn(*batch)
    if rank == 3:
        die()
    if rank == 1:
        before, begin = state_of(loss_fn), time.monotonic()
        with pytest.raises(RuntimeError, match=r"XBNWrapper.forward waited in \w+ for the other ranks"):
            loss_fn(*batch)
        assert time.monotonic() - begin < seconds
        assert state_of(loss_fn) == before
    else:
        for _ in range(3):
            loss_fn(*batch)
        assert loss_fn.num_calls == 6
    (folder / f"rank {rank}").touch()
    os._exit(0)  # there is no barrier to come to


def state_of(loss_fn: Any) -> str:
    return str([loss_fn.embedding_memory, loss_fn.num_calls, loss_fn.queue_idx, loss_fn.adapter.num_batches])
