"""Processes that ``torch.multiprocessing`` starts and gives a memory have a memory of their own each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from exact import exact
from pytorch_metric_learning.losses import SupConLoss
from ranks import on_ranks
from torch import Tensor, distributed

from pml_xbn import AXBNWrapper


def memory(**options: bool) -> AXBNWrapper:
    return AXBNWrapper(SupConLoss(), 4, 16, measurement_noise=20.0, **options)


def batch_of(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(6, 4, generator=generator), torch.arange(6) % 3


@pytest.fixture
def sent(request: pytest.FixtureRequest) -> Iterator[AXBNWrapper]:
    """A memory of the process that sends it, which is to keep it as it is."""
    loss_fn = memory(**({} if request.param == "alone" else {request.param: True}))
    for step in range(3):  # from where on rows are written in place
        loss_fn(*batch_of(step))
    before = exact(loss_fn)
    yield loss_fn
    assert exact(loss_fn) == before


@pytest.mark.parametrize("sent", ["alone"], indirect=True)
@on_ranks(2)
def test_a_rank_trains_with_its_memory_and_that_of_the_other_stays(sent: AXBNWrapper) -> None:
    before = sent.queue.contents.rows.stored.clone()
    distributed.barrier()
    for step in range(3 if distributed.get_rank() == 0 else 0):
        sent(*batch_of(step))
    distributed.barrier()
    assert torch.equal(sent.queue.contents.rows.stored, before) == (distributed.get_rank() == 1)


@pytest.mark.parametrize("sent", ["gather_distributed"], indirect=True)
@on_ranks(2)
def test_a_memory_of_all_ranks_goes_on(sent: AXBNWrapper) -> None:
    expected = memory(gather_distributed=True)
    expected.load_state_dict(sent.state_dict())
    for step in range(3):
        batch = batch_of(2 * step + distributed.get_rank())
        assert torch.equal(sent(*batch), expected(*batch))


@pytest.mark.parametrize("sent", ["shard_distributed"], indirect=True)
@on_ranks(2)
def test_a_memory_that_was_built_before_the_ranks_met_is_not_spread_over_them(sent: AXBNWrapper) -> None:
    with pytest.raises(RuntimeError, match="build it after init_process_group"):
        sent(*batch_of(distributed.get_rank()))
