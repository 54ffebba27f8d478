"""Asserts that a memory that was sent to many processes is a memory of its own in each."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, distributed

from pml_xbn import AXBNWrapper


def memory(**options: bool) -> AXBNWrapper:
    return AXBNWrapper(SupConLoss(), 4, 16, measurement_noise=20.0, **options)


def batch_of(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(6, 4, generator=generator), torch.arange(6) % 3


def check(alone: AXBNWrapper, gathered: AXBNWrapper, sharded: AXBNWrapper) -> None:
    """One rank trains with its memory, and the other's stays as it was sent; a gathered one goes on."""
    rank, expected = distributed.get_rank(), memory(gather_distributed=True)
    before = alone.queue.contents.rows.stored.clone()
    distributed.barrier()
    for step in range(3 if rank == 0 else 0):
        alone(*batch_of(step))
    distributed.barrier()
    assert torch.equal(alone.queue.contents.rows.stored, before) == (rank == 1)

    expected.load_state_dict(gathered.state_dict())
    for step in range(3):
        batch = batch_of(2 * step + rank)
        assert torch.equal(gathered(*batch), expected(*batch))

    with pytest.raises(RuntimeError, match="build it after init_process_group"):
        sharded(*batch_of(rank))
