"""Models under ``fully_shard`` train with a memory of the ranks that have batches of their own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from ranks import on_ranks
from torch import Tensor, distributed, nn

from pml_xbn import AXBNWrapper

pytest.importorskip("torch.distributed.fsdp._fully_shard", reason="fully_shard is public since torch 2.6")

D, M, STEPS = 4, 17, 6
WAYS = ["gather_distributed", "shard_distributed"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(D, 8), nn.Linear(8, D), nn.Linear(D, D)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.down(self.up(inputs).relu()))
        return outputs


def build_model() -> Any:
    torch.manual_seed(0)
    return Model().double()


def build_memory(**options: Any) -> AXBNWrapper:
    return AXBNWrapper(SupConLoss(), D, M, measurement_noise=20.0, memory_dtype=torch.float64, **options)


def batch_of(rank: int, step: int) -> tuple[Tensor, Tensor]:
    size, generator = (rank + step) % 4, torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(size, D, dtype=torch.float64, generator=generator) + step
    return inputs, torch.randint(0, 3, (size,), generator=generator)


def weights_after(model: nn.Module, memories: list[AXBNWrapper], parts: list[list[int]]) -> list[Tensor]:
    """Trains with the mean of the losses of memories, each of the batches of some ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        losses = []
        for loss_fn, ranks in zip(memories, parts, strict=True):
            inputs, labels = map(torch.cat, zip(*(batch_of(rank, step) for rank in ranks), strict=True))
            losses.append(loss_fn(model(inputs), labels))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
    return [x.full_tensor() if hasattr(x, "full_tensor") else x for x in model.parameters()]


def check(model: nn.Module, loss_fn: AXBNWrapper, rank: int, parts: list[list[int]]) -> None:
    """Compares the weights of ranks with those of one process and a memory for each part of the batch."""
    found = weights_after(model, [loss_fn], [[rank]])
    expected = weights_after(build_model(), [build_memory() for _ in parts], parts)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def mesh_of(*shape: int, names: tuple[str, ...]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def fully_sharded(model: Any, mesh: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("way", WAYS)
@on_ranks(4)
def test_a_mesh_trains_as_one_process_does(way: str) -> None:
    mesh = mesh_of(4, names=("shard",))
    loss_fn = build_memory(process_group=mesh, **{way: True})
    check(fully_sharded(build_model(), mesh), loss_fn, distributed.get_rank(), [[0, 1, 2, 3]])


@pytest.mark.parametrize("way", WAYS)
@on_ranks(4)
def test_distributed_embeddings_are_refused(way: str) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = mesh_of(4, names=("shard",))
    loss_fn = build_memory(process_group=mesh, **{way: True})
    rows = distribute_tensor(torch.zeros(4, D), mesh, [Shard(0)])
    with pytest.raises(ValueError, match=r"embeddings is a DTensor: pass .* \.to_local\(\)"):
        loss_fn(rows, torch.arange(4))
    loss_fn(rows.to_local(), torch.arange(1))


@pytest.mark.parametrize("way", WAYS)
@on_ranks(4)
def test_replicas_share_a_memory(way: str) -> None:
    mesh = mesh_of(2, 2, names=("replicate", "shard"))
    loss_fn = build_memory(**{way: True})
    check(fully_sharded(build_model(), mesh), loss_fn, distributed.get_rank(), [[0, 1, 2, 3]])


@pytest.mark.parametrize("way", WAYS)
@on_ranks(4)
def test_a_replica_has_a_memory(way: str) -> None:
    mesh = mesh_of(2, 2, names=("replicate", "shard"))
    loss_fn = build_memory(process_group=mesh["shard"], **{way: True})
    check(fully_sharded(build_model(), mesh), loss_fn, distributed.get_rank(), [[0, 1], [2, 3]])


@pytest.mark.parametrize("way", WAYS)
@on_ranks(4)
def test_ranks_that_hold_parts_of_a_layer_have_a_batch_and_are_in_memories_of_their_own(way: str) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = mesh_of(2, 2, names=("dp", "tp"))
    plan: Any = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = fully_sharded(parallelize_module(build_model(), mesh["tp"], plan), mesh["dp"])
    loss_fn = build_memory(process_group=mesh["dp"], **{way: True})
    check(model, loss_fn, mesh["dp"].get_local_rank(), [[0, 1]])
    assert copy.deepcopy(loss_fn).process_group is loss_fn.process_group


@on_ranks(4)
def test_a_state_tells_which_ranks_hold_it_in_the_words_of_the_mesh_that_was_given() -> None:
    mesh = mesh_of(2, 2, names=("dp", "tp"))
    loss_fn = build_memory(process_group=mesh["dp"], shard_distributed=True)
    loss_fn(*batch_of(mesh["dp"].get_local_rank(), step=1))
    rows: Any = loss_fn.state_dict()["queue.rows"]
    assert (rows.device_mesh, rows.device_mesh.mesh_dim_names) == (mesh["dp"], ("dp",))
