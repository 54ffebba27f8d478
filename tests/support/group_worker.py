"""Asserts that each of two groups of ranks has the memory of one process with the group's batches."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import pytest
import torch
from error_worker import FailsAt
from pytorch_metric_learning import losses
from sharded_worker import LAYOUTS, assert_close
from torch import Tensor, distributed, nn

from pml_xbn import AXBNWrapper, TwoTowerMemory, XBNWrapper
from pml_xbn.losses import BatchLoss
from pml_xbn.pairwise._supported import SHARDED_LOSSES
from pml_xbn.training import ClassBatches

D, M, STEPS = 4, 17, 20
GROUPS = [0, 2], [1, 3]  # of the world, in which the numbers of ranks are others than in a group
GATHERED = [getattr(losses, name) for name in losses.CrossBatchMemory.supported_losses()]


@cache
def own_group() -> distributed.ProcessGroup:
    groups = [distributed.new_group(ranks) for ranks in GROUPS]
    return groups[distributed.get_rank() % 2]


def batch_of(group: int, rank: int, step: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + 10 * group + rank)
    inputs = torch.randn(size, D, dtype=torch.float64, generator=generator) + step
    return inputs, torch.randint(0, 3, (size,), generator=generator)


def train(loss_fn: Any, layout: str, ranks: list[int], steps: int = STEPS) -> Iterator[list[Tensor]]:
    """Yields loss, mean gradient, rows and labels of all steps, of one rank or of a group's batches."""
    torch.manual_seed(0)
    model = nn.Linear(D, D, bias=False).double()
    group = loss_fn.process_group
    for step in range(steps):
        sizes = LAYOUTS[layout](2, step)
        parts = [batch_of(distributed.get_rank() % 2, rank, step, sizes[rank]) for rank in ranks]
        inputs, labels = map(torch.cat, zip(*parts, strict=True))
        model.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        gradient, memory = model.weight.grad.clone(), [loss_fn.embedding_memory, loss_fn.label_memory]
        if group is not None:
            distributed.all_reduce(gradient, group=group)
            gradient /= 2
        if loss_fn.shard_distributed:
            memory = [of_group(x, group) for x in memory]
        yield [loss.detach(), gradient, *(x.clone() for x in memory)]


def of_group(values: Tensor, group: distributed.ProcessGroup) -> Tensor:
    shards: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(shards, values, group=group)
    return torch.cat(shards)


def check_memories(share: int) -> None:
    """Every share-th combination of a loss, whether rows are on all ranks or spread, and a layout."""
    cases = [("gather_distributed", loss) for loss in GATHERED]
    cases += [("shard_distributed", loss) for loss in SHARDED_LOSSES]
    number = distributed.get_rank(own_group())
    for (option, loss_class), layout in itertools.islice(itertools.product(cases, LAYOUTS), 0, None, share):
        options: dict[str, Any] = {"memory_dtype": torch.float64, "measurement_noise": 20.0}
        mine = AXBNWrapper(
            loss_class().double(), D, M, process_group=own_group(), **options, **{option: True}
        )
        alone = AXBNWrapper(loss_class().double(), D, M, **options)
        steps = zip(train(mine, layout, [number]), train(alone, layout, [0, 1]), strict=True)
        for found, expected in steps:
            for one, other in zip(found, expected, strict=True):
                assert_close(one, other)


def check_others() -> None:
    """Two towers, a loss without memory, and batches that are divided, of a group's ranks."""
    group = own_group()
    rank, number = distributed.get_rank(group), distributed.get_rank() % 2
    parts = [batch_of(number, of, 0, 3) for of in range(2)]
    inputs, labels = map(torch.cat, zip(*parts, strict=True))
    options: dict[str, Any] = {"gather_distributed": True, "process_group": group}
    mine, alone = BatchLoss(losses.ContrastiveLoss(), **options), BatchLoss(losses.ContrastiveLoss())
    for one, batch in ((mine, parts[rank]), (alone, (inputs, labels))):
        batch[0].requires_grad_()
        one(*batch).backward()
    assert_close(parts[rank][0].grad / 2, inputs.grad.chunk(2)[rank])

    for one in ("gather_distributed", "shard_distributed"):
        towers = [
            TwoTowerMemory(
                **{
                    name: XBNWrapper(losses.SupConLoss(), D, M, memory_dtype=torch.float64, **more)
                    for name in ("document_memory", "query_memory")
                }
            )
            for more in ({one: True, "process_group": group}, {})
        ]
        found, expected = (
            loss_fn(x, x + 1, y)
            for loss_fn, (x, y) in zip(towers, (parts[rank], (inputs, labels)), strict=True)
        )
        assert_close(found, expected)
    memory = XBNWrapper(losses.SupConLoss(), D, M, shard_distributed=True)
    with pytest.raises(ValueError, match=r"document_memory has process_group=.* and query_memory None"):
        TwoTowerMemory(document_memory=towers[0].document_memory.requires_grad_(False), query_memory=memory)

    mine, whole = (ClassBatches([0, 0, 1, 1], 2, 4, **more) for more in ({"process_group": group}, {}))
    assert list(mine) == [batch[2 * rank : 2 * rank + 2] for batch in whole]


def check_copies() -> None:
    """A copy has the group; what has been pickled has lost it, and says so until it is given one."""
    group = own_group()
    for option in ("gather_distributed", "shard_distributed"):
        memory: Any = XBNWrapper(losses.SupConLoss(), D, M, process_group=group, **{option: True})
        batch = batch_of(distributed.get_rank() % 2, distributed.get_rank(group), 0, 4)
        memory(*batch)
        copied, file = copy.deepcopy(memory), io.BytesIO()
        assert copied.process_group is group
        torch.save(memory, file)
        file.seek(0)
        unpickled = torch.load(file, weights_only=False)
        assert "process_group=lost" in repr(unpickled)
        with pytest.raises(RuntimeError, match="set its process_group"):
            unpickled(*batch)
        unpickled.process_group = group
        first, *others = (loss_fn(*batch) for loss_fn in (memory, copied, unpickled))
        assert all(torch.equal(first, other) for other in others)
    with pytest.raises(
        ValueError, match=r"rank . of 4, which holds . rows from .+ on, but it holds [89] from"
    ):
        memory.process_group = None  # which stands for all four


def check_failures() -> None:
    """Where a rank of one group fails, that group raises and holds what it held; the other one goes on."""
    group, rank = own_group(), distributed.get_rank()
    for option in ("gather_distributed", "shard_distributed"):
        options: dict[str, Any] = {"memory_dtype": torch.float64, "process_group": group, option: True}
        towers = TwoTowerMemory(
            document_memory=AXBNWrapper(losses.SupConLoss(), D, M, measurement_noise=20.0, **options),
            query_memory=XBNWrapper(losses.NTXentLoss(), D, M, **options),
        )
        queries, labels = batch_of(rank % 2, distributed.get_rank(group), 0, 4)
        for _ in range(3):
            counted = FailsAt(-1)
            counted(towers, queries, queries + 1, labels)
        num_calls = -1 - counted.left
        for call in (0, num_calls // 2, num_calls - 1):
            before = str(towers.state_dict())
            if rank % 2 == 1:
                towers(queries, queries + 1, labels)
                assert str(towers.state_dict()) != before
                continue
            with pytest.raises((OSError, RuntimeError), match="disk on fire"):
                FailsAt(call if rank == 2 else -1)(towers, queries, queries + 1, labels)
            assert str(towers.state_dict()) == before
        values = [torch.zeros((), dtype=torch.float64) for _ in range(2)]
        distributed.all_gather(values, towers(queries, queries + 1, labels).detach(), group=group)
        assert values[0] == values[1] > 0


def check_uneven_inputs() -> None:
    """In ``join()`` even inputs train as without it, and uneven ones end the block on all ranks together."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(D, D).double())
    for option in ("gather_distributed", "shard_distributed"):
        loss_fn = XBNWrapper(losses.SupConLoss(), D, M, memory_dtype=torch.float64, **{option: True})

        def steps(*numbers: int, loss_fn: XBNWrapper = loss_fn) -> None:
            for number in numbers:
                inputs, labels = batch_of(0, distributed.get_rank(), number, 4)
                loss_fn(model(inputs), labels).backward()

        twin = copy.deepcopy(loss_fn)
        steps(0, 1, loss_fn=twin)
        with model.join():
            steps(0, 1)
        assert torch.equal(loss_fn.embedding_memory, twin.embedding_memory)
        with pytest.raises(RuntimeError, match="exhausted"), model.join(throw_on_early_termination=True):
            steps(*range(2, 4 + distributed.get_rank()))
        assert loss_fn.num_calls == 4


def check_refusals() -> None:
    """Groups that this rank is not in, and what is no group."""
    first, second = (distributed.new_group(ranks) for ranks in GROUPS)
    other = second if distributed.get_rank() % 2 == 0 else first

    def build(group: Any) -> XBNWrapper:
        return XBNWrapper(losses.SupConLoss(), D, M, gather_distributed=True, process_group=group)

    for given, error, message in [
        (other, ValueError, f"does not hold rank {distributed.get_rank()}: pass the group"),
        ("dp", TypeError, "process_group is a str: pass a torch.distributed.ProcessGroup"),
    ]:
        with pytest.raises(error, match=message):
            build(given)
    with pytest.raises(ValueError, match="no effect without gather_distributed"):
        XBNWrapper(losses.SupConLoss(), D, M, process_group=own_group())


def check_meshes() -> None:
    """A dimension of a mesh is a group, a mesh of two dimensions is not."""
    from torch.distributed.device_mesh import init_device_mesh  # since torch 2.2

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    build = partial(AXBNWrapper, losses.SupConLoss(), D, M, memory_dtype=torch.float64)
    number = distributed.get_rank(mesh["dp"].get_group())
    for option in ("gather_distributed", "shard_distributed"):
        mine, alone = build(process_group=mesh["dp"], **{option: True}), build()
        assert distributed.get_process_group_ranks(mine.process_group) == GROUPS[distributed.get_rank() % 2]
        steps = zip(train(mine, "unequal", [number], 5), train(alone, "unequal", [0, 1], 5), strict=True)
        for found, expected in steps:
            for one, other in zip(found, expected, strict=True):
                assert_close(one, other)
        with pytest.raises(ValueError, match=r"mesh of shape \(2, 2\): pass .* such as mesh\['dp'\]"):
            build(process_group=mesh, **{option: True})
