"""Ranks that do not hold the same rows raise together, at the first call after a load or an edit."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from across_ranks import from_first_rank
from exact import exact
from pytorch_metric_learning.losses import ContrastiveLoss, NCALoss, SupConLoss
from ranks import on_ranks
from torch import Tensor, distributed, nn

from pml_xbn import AXBNWrapper, PerClassXBN, TwoTowerMemory, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

D, M = 4, 24
DTYPES = [torch.float16, torch.float32, torch.float64]
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
    before = exact(loss_fn)
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            act(loss_fn)
        assert exact(loss_fn) == before


def check_goes_on(loss_fn: nn.Module) -> None:
    """All ranks have one loss, and hold the same."""
    losses = [step(loss_fn, number).detach().view(1) for number in (20, 21)]
    values = torch.cat([x.double().flatten() for x in (*losses, *loss_fn.state_dict().values())])
    torch.testing.assert_close(values, from_first_rank(lambda: values), rtol=1e-5, atol=1e-5)


# -- files of their own ------------------------------------------------------------------------------------

OTHER_ROWS = r"embedding_memory differs between ranks 0 to 1 in 15 of 15 rows, from row 0 on"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@on_ranks(2)
def test_files_of_their_own_are_refused_and_one_for_all_goes_on(dtype: torch.dtype) -> None:
    rank = distributed.get_rank()
    loss_fn = AXBNWrapper(SupConLoss(), D, M, gather_distributed=True, memory_dtype=dtype)
    loss_fn.load_state_dict(alone(rank).state_dict())
    check_refused(loss_fn, OTHER_ROWS)
    check_refused(loss_fn, OTHER_ROWS, lambda f: f.fill_memory(*batch_of(rank, 9)))
    loss_fn.load_state_dict(alone(0).state_dict())
    check_goes_on(loss_fn)


@pytest.mark.parametrize("sharded", [False, True], ids=["gathered", "spread"])
@on_ranks(2)
def test_estimates_of_their_own_are_refused(sharded: bool) -> None:
    """Rows and labels are the same on both, and would not stay so."""
    loss_fn = AXBNWrapper(SupConLoss(), D, M, gather_distributed=not sharded, shard_distributed=sharded)
    for number in range(3):
        step(loss_fn, number)
    state = loss_fn.state_dict()
    other = {name: x + distributed.get_rank() if "_extra_state" in name else x for name, x in state.items()}
    assert other.keys() == state.keys()
    assert any("_extra_state" in name for name in state)
    loss_fn.load_state_dict(other)
    check_refused(loss_fn, "state of the adapter .* differs between ranks 0 to 1")
    loss_fn.load_state_dict(state)
    step(loss_fn, 20)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@on_ranks(2)
def test_pickled_memories_of_their_own_are_refused(dtype: torch.dtype) -> None:
    sent = pickle.loads(pickle.dumps(alone(distributed.get_rank(), memory_dtype=dtype)))
    sent.gather_distributed = True
    check_refused(sent, OTHER_ROWS)


# -- edits -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("on", "cls"), [(0, AdaptiveCrossBatchMemory), (1, PerClassXBN)])
@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (add_to_row, "embedding_memory"),
        (assign_rows, "embedding_memory"),
        (write_label, "label_memory"),
        (assign_labels, "label_memory"),
        (load_ids, "id_memory"),
    ],
)
@on_ranks(2)
def test_an_edit_is_refused_on_one_rank_and_counts_on_all(
    edit: Act, name: str, on: int, cls: type[AdaptiveCrossBatchMemory]
) -> None:
    loss_fn = trained(cls)
    if distributed.get_rank() == on:
        edit(loss_fn)
    check_refused(loss_fn, rf"{name} differs between ranks 0 to 1 in 1 of 24 rows, from row 7 on")
    if distributed.get_rank() != on:
        edit(loss_fn)
    check_goes_on(loss_fn)


@on_ranks(2)
def test_a_copy_goes_on() -> None:
    check_goes_on(copy.deepcopy(trained()))


@on_ranks(2)
def test_a_step_of_every_rank_alone_is_refused() -> None:
    """As before the process group was made."""
    loss_fn = trained()
    loss_fn.gather_distributed = False
    step(loss_fn, 5)
    loss_fn.gather_distributed = True
    check_refused(loss_fn, "embedding_memory differs")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@on_ranks(2)
def test_rows_that_differ_by_rounding_are_the_same(dtype: torch.dtype) -> None:
    """Of sums in another order, as on GPUs."""
    loss_fn = trained(memory_dtype=dtype)
    if distributed.get_rank() == 1:
        state = loss_fn.state_dict()
        state["queue.rows"] *= 1 + 2 * torch.finfo(dtype).eps
        loss_fn.load_state_dict(state)
    step(loss_fn, 9)


@pytest.mark.parametrize("name", ["document_memory", "query_memory"])
@on_ranks(2)
def test_an_edit_of_one_tower_is_refused(name: str) -> None:
    rank = distributed.get_rank()
    towers = TwoTowerMemory(document_memory=trained(XBNWrapper), query_memory=trained(XBNWrapper))
    if rank == 0:
        add_to_row(getattr(towers, name))
    check_refused(
        towers,
        "in 1 of 24 rows, from row 7",
        lambda f: f(batch_of(rank, 7)[0], *batch_of(rank, 8)),
    )


@pytest.mark.parametrize("part", ["memory hook", "loss"])
@pytest.mark.parametrize("loss", [SupConLoss, NCALoss, ContrastiveLoss])
@on_ranks(2)
def test_what_others_write_within_the_step_of_one_rank_is_refused(loss: type[nn.Module], part: str) -> None:
    loss_fn = AXBNWrapper(loss(), D, M, gather_distributed=True)
    for number in range(3):
        step(loss_fn, number)
    before = exact(loss_fn)

    def write(*_: Any) -> None:
        if distributed.get_rank() == 1:
            add_to_row(loss_fn)

    register = loss_fn.loss.register_forward_hook if part == "loss" else loss_fn.register_memory_hook
    handle = register(write)
    with pytest.raises(RuntimeError, match="within a step of the memory would be lost"):
        step(loss_fn, 5)
    handle.remove()
    assert exact(loss_fn) == before
    check_goes_on(loss_fn)


# -- what it costs -----------------------------------------------------------------------------------------


@contextmanager
def counted_sums() -> Iterator[list[int]]:
    """Counts how often ranks reduce something together; a gathered step of XBN does not."""
    counts, reduce = [0], distributed.all_reduce

    def counting(*args: Any, **options: Any) -> Any:
        counts[0] += 1
        return reduce(*args, **options)

    with patch.object(distributed, "all_reduce", counting):
        yield counts


@on_ranks(2)
def test_memories_are_compared_in_the_first_call_after_a_load_and_in_no_other() -> None:
    loss_fn = trained()
    for _ in range(2):
        with counted_sums() as counts:
            step(loss_fn, 5)
        assert counts == [0]
        if distributed.get_rank() == 1:  # it alone knows
            loss_fn.load_state_dict(loss_fn.state_dict())
        with counted_sums() as counts:
            step(loss_fn, 6)
        assert counts[0] > 0


@on_ranks(2)
def test_shards_of_two_memories_are_refused() -> None:
    """They have another map each."""
    loss_fn = AXBNWrapper(SupConLoss(), D, M, shard_distributed=True)
    states = [alone(seed).state_dict() for seed in (0, 1)]
    loss_fn.load_state_dict(states[distributed.get_rank()])
    check_refused(loss_fn, "not of one memory")
    loss_fn.eval()
    check_refused(loss_fn, "not of one memory")
    loss_fn.train().load_state_dict(states[0])
    with counted_sums() as first:
        step(loss_fn, 5)
    with counted_sums() as second:
        step(loss_fn, 6)
    assert first[0] > second[0]
