"""Two groups of two ranks each hold two independent memories."""

from __future__ import annotations

import copy
import io
import itertools
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from across_ranks import from_first_rank, of_all_ranks
from exact import exact
from fails_at import FailsAt
from pytorch_metric_learning import losses
from ranks import on_ranks
from share_of_cases import share_of
from torch import distributed, nn
from two_groups import GROUPS, LAYOUTS, D, M, assert_close, batch_of, own_batch, own_group, train

from pml_xbn import AXBNWrapper, TwoTowerMemory, XBNWrapper
from pml_xbn.losses import BatchLoss
from pml_xbn.pairwise._fused_losses import FUSED_LOSSES
from pml_xbn.training import ClassBatches

WAYS = ["gather_distributed", "shard_distributed"]
LOSSES = [("gather_distributed", getattr(losses, x)) for x in losses.CrossBatchMemory.supported_losses()]
SHARDABLE = [kind for kind, fused in FUSED_LOSSES.items() if fused.can_be_sharded]
LOSSES += [("shard_distributed", loss_class) for loss_class in SHARDABLE]


@pytest.mark.parametrize(
    ("way", "loss_class", "layout"),
    [(*loss, layout) for loss, layout in share_of(itertools.product(LOSSES, LAYOUTS), at_most=5)],
)
@on_ranks(4)
def test_a_group_has_rows_loss_and_gradient_of_one_process(
    way: str, loss_class: type[nn.Module], layout: str
) -> None:
    options: dict[str, Any] = {"memory_dtype": torch.float64, "measurement_noise": 20.0}
    mine = AXBNWrapper(loss_class().double(), D, M, process_group=own_group(), **options, **{way: True})
    alone = AXBNWrapper(loss_class().double(), D, M, **options)
    found = list(train(mine, layout, [distributed.get_rank(own_group())]))
    assert_close(found, from_first_rank(lambda: list(train(alone, layout, [0, 1])), own_group()))


@on_ranks(4)
def test_a_group_has_the_loss_without_memory_of_one_process() -> None:
    rank, group = distributed.get_rank(own_group()), distributed.get_rank() % 2
    parts = [batch_of(group, of, 0, 3) for of in range(2)]
    inputs, labels = map(torch.cat, zip(*parts, strict=True))
    mine = BatchLoss(losses.ContrastiveLoss(), gather_distributed=True, process_group=own_group())
    for loss_fn, batch in ((mine, parts[rank]), (BatchLoss(losses.ContrastiveLoss()), (inputs, labels))):
        batch[0].requires_grad_()
        loss_fn(*batch).backward()
    assert_close(parts[rank][0].grad / 2, inputs.grad.chunk(2)[rank])


def two_towers(**options: Any) -> TwoTowerMemory:
    names = ("document_memory", "query_memory")
    return TwoTowerMemory(
        **{n: XBNWrapper(losses.SupConLoss(), D, M, memory_dtype=torch.float64, **options) for n in names}
    )


@pytest.mark.parametrize("way", WAYS)
@on_ranks(4)
def test_a_group_has_the_two_towers_of_one_process(way: str) -> None:
    group = distributed.get_rank() % 2
    inputs, labels = map(torch.cat, zip(*(batch_of(group, of, 0, 3) for of in range(2)), strict=True))
    own, own_labels = own_batch(0, 3)
    found = two_towers(process_group=own_group(), **{way: True})(own, own + 1, own_labels)
    assert_close(found, two_towers()(inputs, inputs + 1, labels))


@on_ranks(4)
def test_towers_of_two_groups_are_refused() -> None:
    of_group, of_all = (
        XBNWrapper(losses.SupConLoss(), D, M, shard_distributed=True, process_group=group)
        for group in (own_group(), None)
    )
    with pytest.raises(ValueError, match=r"document_memory has process_group=.* and query_memory None"):
        TwoTowerMemory(document_memory=of_group, query_memory=of_all)


@on_ranks(4)
def test_batches_are_divided_among_the_ranks_of_a_group() -> None:
    mine, whole = (ClassBatches([0, 0, 1, 1], 2, 4, process_group=group) for group in (own_group(), None))
    rank = distributed.get_rank(own_group())
    assert list(mine) == [batch[2 * rank : 2 * rank + 2] for batch in whole]


@pytest.mark.parametrize("way", WAYS)
@on_ranks(4)
def test_a_copy_has_the_group_and_what_was_pickled_is_to_be_given_one(way: str) -> None:
    memory: Any = XBNWrapper(losses.SupConLoss(), D, M, process_group=own_group(), **{way: True})
    batch = own_batch(0, 4)
    memory(*batch)
    copied, file = copy.deepcopy(memory), io.BytesIO()
    assert copied.process_group is own_group()
    torch.save(memory, file)
    file.seek(0)
    unpickled = torch.load(file, weights_only=False)
    assert "process_group=lost" in repr(unpickled)
    with pytest.raises(RuntimeError, match="set its process_group"):
        unpickled(*batch)
    unpickled.process_group = own_group()
    first, *others = (loss_fn(*batch) for loss_fn in (memory, copied, unpickled))
    assert all(torch.equal(first, other) for other in others)


@on_ranks(4)
def test_a_memory_that_is_spread_over_a_group_is_given_to_no_other() -> None:
    memory: Any = XBNWrapper(losses.SupConLoss(), D, M, process_group=own_group(), shard_distributed=True)
    memory(*own_batch(0, 4))
    with pytest.raises(
        ValueError, match=r"rank . of 4, which holds . rows from .+ on, but it holds [89] from"
    ):
        memory.process_group = None  # which stands for all four


@pytest.mark.parametrize("way", WAYS)
@on_ranks(4)
def test_where_a_rank_fails_its_group_raises_and_the_other_goes_on(way: str) -> None:
    group, rank = own_group(), distributed.get_rank()
    options: dict[str, Any] = {"memory_dtype": torch.float64, "process_group": group, way: True}
    towers = TwoTowerMemory(
        document_memory=AXBNWrapper(losses.SupConLoss(), D, M, measurement_noise=20.0, **options),
        query_memory=XBNWrapper(losses.NTXentLoss(), D, M, **options),
    )
    queries, labels = own_batch(0, 4)
    for _ in range(3):
        counted = FailsAt(-1)
        counted(towers, queries, queries + 1, labels)
    num_calls = -1 - counted.left
    for call in (0, num_calls // 2, num_calls - 1):
        before = exact(towers)
        if rank % 2 == 1:
            towers(queries, queries + 1, labels)
            assert exact(towers) != before
            continue
        with pytest.raises((OSError, RuntimeError), match="disk on fire"):
            FailsAt(call if rank == 2 else -1)(towers, queries, queries + 1, labels)
        assert exact(towers) == before
    one, other = of_all_ranks(towers(queries, queries + 1, labels).detach(), group)
    assert one == other > 0


@pytest.mark.parametrize("way", WAYS)
@on_ranks(4)
def test_in_join_even_inputs_train_as_without_it_and_uneven_ones_end_on_all_together(way: str) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(D, D).double())
    loss_fn = XBNWrapper(losses.SupConLoss(), D, M, memory_dtype=torch.float64, **{way: True})
    twin = copy.deepcopy(loss_fn)

    def steps(loss_fn: XBNWrapper, *numbers: int) -> None:
        for number in numbers:
            inputs, labels = batch_of(0, distributed.get_rank(), number, 4)
            loss_fn(model(inputs), labels).backward()

    steps(twin, 0, 1)
    with model.join():
        steps(loss_fn, 0, 1)
    assert torch.equal(loss_fn.embedding_memory, twin.embedding_memory)
    with pytest.raises(RuntimeError, match="exhausted"), model.join(throw_on_early_termination=True):
        steps(loss_fn, *range(2, 4 + distributed.get_rank()))
    assert loss_fn.num_calls == 4


@on_ranks(4)
def test_a_group_without_this_rank_and_what_is_no_group_are_refused() -> None:
    groups, rank = [distributed.new_group(ranks) for ranks in GROUPS], distributed.get_rank()
    for given, error, message in [
        (groups[1 - rank % 2], ValueError, f"does not hold rank {rank}: pass the group"),
        ("dp", TypeError, "process_group is a str: pass a torch.distributed.ProcessGroup"),
    ]:
        with pytest.raises(error, match=message):
            XBNWrapper(losses.SupConLoss(), D, M, gather_distributed=True, process_group=given)
    with pytest.raises(ValueError, match="no effect without gather_distributed"):
        XBNWrapper(losses.SupConLoss(), D, M, process_group=own_group())


@pytest.mark.skipif(find_spec("torch.distributed.device_mesh") is None, reason="since torch 2.2")
@pytest.mark.parametrize("way", WAYS)
@on_ranks(4)
def test_a_dimension_of_a_mesh_is_a_group_and_a_mesh_of_two_is_not(way: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    build = partial(AXBNWrapper, losses.SupConLoss(), D, M, memory_dtype=torch.float64)
    mine, alone = build(process_group=mesh["dp"], **{way: True}), build()
    assert distributed.get_process_group_ranks(mine.process_group) == GROUPS[distributed.get_rank() % 2]
    found = list(train(mine, "unequal", [distributed.get_rank(mesh["dp"].get_group())], 5))
    assert_close(found, list(train(alone, "unequal", [0, 1], 5)))
    with pytest.raises(ValueError, match=r"mesh of shape \(2, 2\): pass .* such as mesh\['dp'\]"):
        build(process_group=mesh, **{way: True})
