"""Two and three ranks hold one memory, and train as one process on the global batch does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from across_ranks import assert_equal_on_ranks, from_first_rank, mean_of_ranks, of_all_ranks
from kinds import KINDS, WRAPPERS
from pytorch_metric_learning.losses import ContrastiveLoss, CrossBatchMemory, SupConLoss
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from ranks import on_ranks
from torch import Tensor, distributed, nn

from pml_xbn import XBNWrapper
from pml_xbn.adapters import CovarianceMatching
from pml_xbn.losses import AdaptiveCrossBatchMemory

D, M, STEPS = 4, 17, 8


def of_covariances(*args: Any, **kwargs: Any) -> nn.Module:
    memory = AdaptiveCrossBatchMemory(*args, **kwargs)
    memory.register_memory_hook(CovarianceMatching())
    return memory


MEMORIES: dict[str, Callable[..., nn.Module]] = {
    **{name: KINDS[name].memory for name in WRAPPERS},
    "covariances": of_covariances,
}


def batch_of(rank: int, step: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(size, D, generator=generator) + step
    return inputs, torch.arange(size) % 3


def own_batch(step: int, size: int) -> tuple[Tensor, Tensor]:
    return batch_of(distributed.get_rank(), step, size)


def sizes_of(step: int, equal: bool) -> list[int]:
    """Rows that every rank brings; one brings none now and then."""
    ranks = range(distributed.get_world_size())
    return [4 if equal else (rank + step) % 4 + (rank == 0) for rank in ranks]


def train(loss_fn: Any, ranks: list[int], equal: bool, masked: bool) -> list[list[Tensor]]:
    """Mean gradient, rows, labels and position of all steps, as one rank, or on the batches of all ranks.

    In float64, lest the rounding of a product that depends on the batch's size, which a batch of
    two rows with a small σ enlarges, be taken for a difference.
    """
    torch.manual_seed(0)
    model = nn.Linear(D, D, bias=False).double()
    history = []
    for step in range(STEPS):
        sizes = sizes_of(step, equal)
        batches = [batch_of(rank, step, sizes[rank]) for rank in ranks]
        masks = [torch.arange(sizes[rank]) % 2 == 1 for rank in ranks]
        inputs, labels, mask = (torch.cat(x) for x in (*zip(*batches, strict=True), masks))
        model.zero_grad()
        loss_fn(model(inputs.double()), labels, None, mask if masked else None).backward()
        gradient = mean_of_ranks(model.weight.grad) if len(ranks) == 1 else model.weight.grad.clone()
        history.append([gradient, *memory_of(loss_fn)])
    return history


def memory_of(loss_fn: Any) -> list[Tensor]:
    """Rows, labels and position."""
    return [
        loss_fn.embedding_memory.clone(),
        loss_fn.label_memory.clone(),
        torch.tensor(loss_fn.queue_idx),
    ]


def assert_same_memory(loss_fn: Any) -> None:
    for values in memory_of(loss_fn):
        assert_equal_on_ranks(values)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("name", MEMORIES)
@on_ranks(2, 3)
def test_ranks_hold_the_memory_and_gradient_of_one_process(name: str, equal: bool, masked: bool) -> None:
    mine, alone = (
        MEMORIES[name](
            SupConLoss(reducer=MeanReducer()), D, M, memory_dtype=torch.float64, gather_distributed=is_rank
        )
        for is_rank in (True, False)
    )
    everyone = list(range(distributed.get_world_size()))
    found = train(mine, [distributed.get_rank()], equal, masked)
    expected = from_first_rank(lambda: train(alone, everyone, equal, masked))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert_equal_on_ranks(torch.cat([values.double().flatten() for one in found for values in one]))


@on_ranks(2, 3)
def test_a_batch_that_one_rank_skips_is_stored_by_none() -> None:
    loss_fn = XBNWrapper(SupConLoss(), D, M, gather_distributed=True, nonfinite="skip")
    loss_fn(*own_batch(0, 4))
    inputs, labels = own_batch(1, 4)
    if distributed.get_rank() == 1:
        inputs[0, 0] = float("inf")
    loss_fn(inputs, labels)
    assert_same_memory(loss_fn)
    assert loss_fn.num_rows == 4 * distributed.get_world_size()


@on_ranks(2)
def test_inf_that_is_stored_is_the_same_on_all_ranks() -> None:
    loss_fn = XBNWrapper(SupConLoss(), D, M, gather_distributed=True, nonfinite="ignore")
    inputs, labels = own_batch(0, 4)
    inputs[1, 2] = float("inf") if distributed.get_rank() == 0 else -float("inf")
    loss_fn(inputs.requires_grad_(), labels)
    assert loss_fn.embedding_memory[[1, 5], 2].tolist() == [float("inf"), -float("inf")]


@on_ranks(2, 3)
def test_fill_memory_gathers_in_rank_order() -> None:
    loss_fn = XBNWrapper(SupConLoss(), D, M, gather_distributed=True)
    loss_fn.fill_memory(*own_batch(0, 3 + distributed.get_rank()))
    assert_same_memory(loss_fn)
    expected = torch.cat([batch_of(rank, 0, 3 + rank)[0] for rank in range(distributed.get_world_size())])
    torch.testing.assert_close(loss_fn.embedding_memory[: len(expected)], expected)


# -- inside PML's wrapper ----------------------------------------------------------------------------------


def steps_inside(memory: Any, masked: bool) -> list[list[Tensor]]:
    """Loss and gradient of all steps, and what the memory holds at the end."""
    mask = torch.arange(4) % 2 == 1 if masked else None
    loss_fn, history = DistributedLossWrapper(memory), []
    for step in range(5):
        inputs, labels = own_batch(step, 4)
        loss = loss_fn(inputs.requires_grad_(), labels, enqueue_mask=mask)
        loss.backward()
        history.append([loss.detach(), inputs.grad])
    return [*history, memory_of(memory)[:2]]


@cache
def pmls_steps_inside(masked: bool) -> list[list[Tensor]]:
    return steps_inside(CrossBatchMemory(ContrastiveLoss(), D, M), masked)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", MEMORIES)
@on_ranks(2, 3)
def test_inside_pmls_distributed_wrapper_they_are_its_memory(name: str, masked: bool) -> None:
    # Of an adapter that never begins.
    found = steps_inside(MEMORIES[name](ContrastiveLoss(), D, M, delay=10**9), masked)
    torch.testing.assert_close(found, pmls_steps_inside(masked))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", MEMORIES)
@on_ranks(2, 3)
def test_inside_pmls_distributed_wrapper_adapted_rows_give_finite_losses(name: str, masked: bool) -> None:
    for loss, gradient in steps_inside(MEMORIES[name](ContrastiveLoss(), D, M), masked)[:-1]:
        assert loss.isfinite()
        assert gradient.isfinite().all()


@on_ranks(2, 3)
def test_b14_pmls_ranks_differ() -> None:
    rows, _ = pmls_steps_inside(masked=False)[-1]
    first, second, *_ = of_all_ranks(rows)
    assert not torch.equal(first, second)
    # Other rows, not only another order: 17 is no multiple of the global batch.
    assert not torch.equal(first.sort(dim=0).values, second.sort(dim=0).values)
