"""Asserts that ranks that do not hold the same memory all raise, and that others go on."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, NCALoss, SupConLoss
from torch import Tensor, distributed, nn

from pml_xbn import AXBNWrapper, PerClassXBN, TwoTowerMemory, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

D, M = 4, 24
Act = Callable[[Any], object]


def batch_of(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(5, D, generator=generator) + step, torch.arange(5) % 3


def step(loss_fn: nn.Module, number: int) -> Tensor:
    """A step of all ranks, each with a batch of its own."""
    loss: Tensor = loss_fn(*batch_of(distributed.get_rank(), number))
    return loss


def trained(cls: type[AdaptiveCrossBatchMemory] = AXBNWrapper, **options: Any) -> AdaptiveCrossBatchMemory:
    loss_fn = cls(SupConLoss(), D, M, gather_distributed=True, **options)
    for number in range(3):
        step(loss_fn, number)
    return loss_fn


def alone(seed: int, **options: Any) -> AXBNWrapper:
    """A memory of one process, that of each seed with other rows."""
    loss_fn = AXBNWrapper(SupConLoss(), D, M, **options)
    for number in range(3):
        loss_fn(*batch_of(seed, number), sample_ids=torch.arange(5) + 5 * number)
    return loss_fn


def check_refused(loss_fn: nn.Module, message: str, act: Act = lambda loss_fn: step(loss_fn, 9)) -> None:
    """All ranks raise, as often as they call it, and nothing changes."""
    before = str(loss_fn.state_dict())
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            act(loss_fn)
        assert str(loss_fn.state_dict()) == before


def check_goes_on(loss_fn: nn.Module) -> None:
    """All ranks have one loss, and hold the same."""
    losses = [step(loss_fn, number).detach().view(1) for number in (20, 21)]
    values = torch.cat([x.double().flatten() for x in (*losses, *loss_fn.state_dict().values())])
    of_first = values.clone()
    distributed.broadcast(of_first, 0)
    torch.testing.assert_close(of_first, values, rtol=1e-5, atol=1e-5)


def check_files_of_their_own(rank: int) -> None:
    message = r"embedding_memory differs between ranks 0 to 1 in 15 of 15 rows, from row 0 on"
    for dtype in (torch.float16, torch.float32, torch.float64):
        options = {"gather_distributed": True, "memory_dtype": dtype}
        loss_fn = AXBNWrapper(SupConLoss(), D, M, **options)
        loss_fn.load_state_dict(alone(rank).state_dict())
        check_refused(loss_fn, message)
        check_refused(loss_fn, message, lambda f: f.fill_memory(*batch_of(rank, 9)))
        loss_fn.load_state_dict(alone(0).state_dict())
        check_goes_on(loss_fn)
        # A whole memory that was pickled, of which each rank takes its own.
        sent = pickle.loads(pickle.dumps(alone(rank, **(options | {"gather_distributed": False}))))
        sent.gather_distributed = True
        check_refused(sent, message)


def add_to_row(loss_fn: AdaptiveCrossBatchMemory) -> None:
    loss_fn.embedding_memory[7] += 1


def assign_rows(loss_fn: AdaptiveCrossBatchMemory) -> None:
    rows = loss_fn.embedding_memory.clone()
    rows[7] += 1
    loss_fn.embedding_memory = rows


def write_label(loss_fn: AdaptiveCrossBatchMemory) -> None:
    loss_fn.label_memory[7] += 1


def assign_labels(loss_fn: AdaptiveCrossBatchMemory) -> None:
    loss_fn.label_memory = loss_fn.label_memory + (torch.arange(M) == 7)


def load_ids(loss_fn: AdaptiveCrossBatchMemory) -> None:
    state = loss_fn.state_dict()
    state["queue.ids"][7] += 1
    loss_fn.load_state_dict(state)


EDITS: dict[Act, str] = {
    add_to_row: "embedding_memory",
    assign_rows: "embedding_memory",
    write_label: "label_memory",
    assign_labels: "label_memory",
    load_ids: "id_memory",
}


def check_edits(rank: int) -> None:
    """On one rank they are refused, on all they count."""
    for edit, name in EDITS.items():
        for on, cls in enumerate((AdaptiveCrossBatchMemory, PerClassXBN)):
            loss_fn = trained(cls)
            if rank == on:
                edit(loss_fn)
            check_refused(loss_fn, rf"{name} differs between ranks 0 to 1 in 1 of 24 rows, from row 7 on")
            if rank != on:
                edit(loss_fn)
            check_goes_on(loss_fn)


def check_steps_alone(rank: int) -> None:
    """As before the process group was made."""
    loss_fn = trained()
    loss_fn.gather_distributed = False
    step(loss_fn, 5)
    loss_fn.gather_distributed = True
    check_refused(loss_fn, "embedding_memory differs")


def check_rounding(rank: int) -> None:
    """Of sums in another order, as on GPUs."""
    for dtype in (torch.float16, torch.float32, torch.float64):
        loss_fn = trained(memory_dtype=dtype)
        if rank == 1:
            state = loss_fn.state_dict()
            state["queue.rows"] *= 1 + 2 * torch.finfo(dtype).eps
            loss_fn.load_state_dict(state)
        step(loss_fn, 9)


@contextmanager
def counted_sums() -> Iterator[list[int]]:
    """Counts how often ranks reduce something together; a gathered step of XBN does not."""
    counts, reduce = [0], distributed.all_reduce

    def counting(*args: Any, **options: Any) -> Any:
        counts[0] += 1
        return reduce(*args, **options)

    with patch.object(distributed, "all_reduce", counting):
        yield counts


def check_costs(rank: int) -> None:
    """Ranks compare their memories in the first call after a load, and in no other."""
    loss_fn = trained()
    for _ in range(2):
        with counted_sums() as counts:
            step(loss_fn, 5)
        assert counts == [0]
        if rank == 1:  # it alone knows
            loss_fn.load_state_dict(loss_fn.state_dict())
        with counted_sums() as counts:
            step(loss_fn, 6)
        assert counts[0] > 0


def check_two_towers(rank: int) -> None:
    for name in ("document_memory", "query_memory"):
        towers = TwoTowerMemory(document_memory=trained(XBNWrapper), query_memory=trained(XBNWrapper))
        if rank == 0:
            add_to_row(getattr(towers, name))
        check_refused(
            towers,
            "in 1 of 24 rows, from row 7",
            lambda f: f(batch_of(rank, 7)[0], *batch_of(rank, 8)),
        )


def check_shards(rank: int) -> None:
    """Shards of two memories, which have another map each."""
    loss_fn = AXBNWrapper(SupConLoss(), D, M, shard_distributed=True)
    states = [alone(seed).state_dict() for seed in (0, 1)]
    loss_fn.load_state_dict(states[rank])
    check_refused(loss_fn, "not of one memory")
    loss_fn.eval()
    check_refused(loss_fn, "not of one memory")
    loss_fn.train().load_state_dict(states[0])
    with counted_sums() as first:
        step(loss_fn, 5)
    with counted_sums() as second:
        step(loss_fn, 6)
    assert first[0] > second[0]


def check_writes_on_one_rank(rank: int) -> None:
    """What code of others writes to the memory within the step of one rank, all ranks refuse."""
    for loss in (SupConLoss(), NCALoss(), ContrastiveLoss()):
        loss_fn = AXBNWrapper(loss, D, M, gather_distributed=True)
        for number in range(3):
            step(loss_fn, number)
        before = str(loss_fn.state_dict())
        for part in ("memory hook", "loss"):

            def write(*_: Any) -> None:
                if rank == 1:
                    add_to_row(loss_fn)  # noqa: B023

            register = loss_fn.loss.register_forward_hook if part == "loss" else loss_fn.register_memory_hook
            handle = register(write)
            with pytest.raises(RuntimeError, match="within a step of the memory would be lost"):
                step(loss_fn, 5)
            handle.remove()
            assert str(loss_fn.state_dict()) == before
        check_goes_on(loss_fn)


def check() -> None:
    rank = distributed.get_rank()
    check_files_of_their_own(rank)
    check_edits(rank)
    check_steps_alone(rank)
    check_rounding(rank)
    check_costs(rank)
    check_two_towers(rank)
    check_shards(rank)
    check_writes_on_one_rank(rank)
    check_goes_on(copy.deepcopy(trained()))
