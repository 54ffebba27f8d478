"""Asserts that models under ``fully_shard`` on a mesh train with a memory as one process does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from group_worker import D, M, batch_of
from pytorch_metric_learning.losses import SupConLoss
from sharded_worker import assert_close
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pml_xbn import AXBNWrapper

STEPS = 6
OPTIONS = ("gather_distributed", "shard_distributed")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(D, 8), nn.Linear(8, D), nn.Linear(D, D)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.down(self.up(inputs).relu()))
        return outputs


def make() -> Model:
    torch.manual_seed(0)
    return Model().double()


def memory(**options: Any) -> AXBNWrapper:
    return AXBNWrapper(SupConLoss(), D, M, measurement_noise=20.0, memory_dtype=torch.float64, **options)


def weights_after(model: nn.Module, memories: list[AXBNWrapper], parts: list[list[int]]) -> list[Tensor]:
    """Trains with the mean of the losses of memories, each of the batches of some ranks, of unequal sizes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        losses = []
        for loss_fn, ranks in zip(memories, parts, strict=True):
            batches = [batch_of(0, rank, step, (rank + step) % 4) for rank in ranks]
            inputs, labels = map(torch.cat, zip(*batches, strict=True))
            losses.append(loss_fn(model(inputs), labels))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
    return [x.full_tensor() if hasattr(x, "full_tensor") else x for x in model.parameters()]


def check_model(model: nn.Module, loss_fn: AXBNWrapper, rank: int, parts: list[list[int]]) -> None:
    """Compares the weights of ranks with those of one process and a memory for each part of the batch."""
    found = weights_after(model, [loss_fn], [[rank]])
    expected = weights_after(make(), [memory() for _ in parts], parts)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def check() -> None:
    check_one_dimension()
    check_replicas()
    check_tensor_parallel()


def check_one_dimension() -> None:
    mesh, rank = init_device_mesh("cpu", (4,)), distributed.get_rank()
    for option in OPTIONS:
        loss_fn = memory(process_group=mesh, **{option: True})
        check_model(fully_shard(make(), mesh=mesh), loss_fn, rank, [[0, 1, 2, 3]])
        rows = distribute_tensor(torch.zeros(4, D), mesh, [Shard(0)])
        with pytest.raises(ValueError, match=r"embeddings is a DTensor: pass .* \.to_local\(\)"):
            loss_fn(rows, torch.arange(4))
        loss_fn(rows.to_local(), torch.arange(1))


def check_replicas() -> None:
    """HSDP: one memory for all ranks, or one for those of each replica."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    rank = distributed.get_rank()
    for option in OPTIONS:
        check_model(fully_shard(make(), mesh=mesh), memory(**{option: True}), rank, [[0, 1, 2, 3]])
        of_replica = memory(process_group=mesh["shard"], **{option: True})
        check_model(fully_shard(make(), mesh=mesh), of_replica, rank, [[0, 1], [2, 3]])


def check_tensor_parallel() -> None:
    """Ranks that hold parts of one layer have one batch, and are in memories of their own."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan: Any = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for option in OPTIONS:
        model = fully_shard(parallelize_module(make(), mesh["tp"], plan), mesh=mesh["dp"])
        loss_fn = memory(process_group=mesh["dp"], **{option: True})
        check_model(model, loss_fn, mesh["dp"].get_local_rank(), [[0, 1]])
        assert copy.deepcopy(loss_fn).process_group is loss_fn.process_group
    # A state tells tools which ranks hold it, in the words of the mesh that was given.
    rows: Any = loss_fn.state_dict()["queue.rows"]
    assert (rows.device_mesh, rows.device_mesh.mesh_dim_names) == (mesh["dp"], ("dp",))
