"""A memory whose rows are spread over the ranks is the memory of one process."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from across_ranks import from_first_rank, mean_of_ranks, of_all_ranks
from as_on_a_gpu import read_as
from kinds import KINDS, WRAPPERS
from pytorch_metric_learning import distances, losses, miners, reducers, regularizers
from ranks import Pools, on_ranks
from share_of_cases import IS_THOROUGH, share_of
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint

from pml_xbn import XBNWrapper
from pml_xbn.distributed import _sharded_loss
from pml_xbn.losses import AdaptiveCrossBatchMemory
from pml_xbn.pairwise._fused_losses import FUSED_LOSSES

D = 4
MINERS: dict[str, Callable[[], nn.Module | None]] = {
    "none": lambda: None,
    "pair margin": lambda: miners.PairMarginMiner(pos_margin=0.3, neg_margin=1.1),
    "multi-similarity": miners.MultiSimilarityMiner,
    "hard": miners.BatchHardMiner,
    "easy, semihard": lambda: miners.BatchEasyHardMiner("easy", "semihard", allowed_pos_range=(-0.5, 0.99)),
    "semihard, hard": lambda: miners.BatchEasyHardMiner("semihard", "hard"),
    "all, easy": lambda: miners.BatchEasyHardMiner("all", "easy"),
}
LAYOUTS: dict[str, Callable[[int, int], list[int]]] = {
    "equal": lambda ranks, step: [3] * ranks,
    "unequal": lambda ranks, step: [1 + (2 * (rank + step)) % 5 for rank in range(ranks)],
    "one empty": lambda ranks, step: [0 if rank == step % ranks else 2 + step % 3 for rank in range(ranks)],
}


def batch_of(rank: int, step: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(size, D, dtype=torch.float64, generator=generator) + step
    labels, ids = (torch.randint(low, end, (size,), generator=generator) for low, end in ((0, 3), (-1, 18)))
    return inputs, labels, ids


def train(
    loss_fn: Any, layout: str, steps: int, *, ranks: list[int], is_masked: bool, has_ids: bool
) -> Iterator[list[Tensor]]:
    """Yields loss, mean gradient, rows, labels, samples, position and number of rows of all steps."""
    torch.manual_seed(0)
    model = nn.Linear(D, D, bias=False).double()
    is_rank = loss_fn.shard_distributed
    for step in range(steps):
        sizes = LAYOUTS[layout](distributed.get_world_size(), step)
        inputs, labels, ids = map(torch.cat, zip(*(batch_of(r, step, sizes[r]) for r in ranks), strict=True))
        mask = torch.cat([torch.arange(sizes[r]) % 2 == 1 for r in ranks]) if is_masked else None
        model.zero_grad()
        if has_ids:
            ids, labels = ids, ids % 3
        loss = loss_fn(model(inputs), labels, None, mask, sample_ids=ids if has_ids else None)
        loss.backward()
        gradient = model.weight.grad
        memory = [loss_fn.embedding_memory, loss_fn.label_memory, loss_fn.id_memory]
        if is_rank:
            gradient, memory = mean_of_ranks(gradient), [torch.cat(of_all_ranks(x)) for x in memory]
        numbers = torch.tensor([loss_fn.queue_idx, loss_fn.num_rows])
        yield [x.clone() for x in (loss.detach(), gradient, *memory, numbers)]
        assert loss_fn.num_rows <= loss_fn.memory_size


def check_equal(build: Callable[..., Any], layout: str, steps: int, **options: bool) -> None:
    rank, size = distributed.get_rank(), distributed.get_world_size()

    def run(loss_fn: Any, ranks: list[int]) -> Iterator[list[Tensor]]:
        yield from train(loss_fn, layout, steps, ranks=ranks, **options)
        yield read(loss_fn, layout, ranks)

    found = run(build(shard_distributed=True), [rank])
    expected = from_first_rank(lambda: list(run(build(), list(range(size)))))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def read(loss_fn: Any, layout: str, ranks: list[int]) -> list[Tensor]:
    """Returns losses of calls that store nothing, and the position of the queue after them."""
    sizes = LAYOUTS[layout](distributed.get_world_size(), 0)
    inputs, labels, _ = map(torch.cat, zip(*(batch_of(r, 0, sizes[r]) for r in ranks), strict=True))
    with torch.no_grad():
        values = [loss_fn(inputs, labels)]
    values.append(loss_fn.eval()(inputs, labels))
    loss_fn.train()
    return [*values, torch.tensor(loss_fn.queue_idx)]


def assert_close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def built(loss_class: Any, miner: str, **options: Any) -> XBNWrapper:
    return XBNWrapper(loss_class().double(), D, 17, MINERS[miner](), memory_dtype=torch.float64, **options)


SHARDABLE = [kind for kind, fused in FUSED_LOSSES.items() if fused.can_be_sharded]


@pytest.mark.parametrize(
    ("loss_class", "miner", "layout", "is_masked"),
    share_of(itertools.product(SHARDABLE, MINERS, LAYOUTS, (False, True)), at_most=17),
)
@on_ranks(2, 3)
def test_loss_and_gradient_are_those_of_one_process(
    loss_class: type[nn.Module], miner: str, layout: str, is_masked: bool
) -> None:
    check_equal(partial(built, loss_class, miner), layout, 3, is_masked=is_masked, has_ids=False)


@pytest.mark.parametrize("kind", ["xbn", "per class"])
@on_ranks(2, 3)
def test_steps_on_gpus_are_those_of_one_process(kind: str) -> None:
    """A rank knows which of its places hold a row, also before the queue has come to it."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    build = partial(KINDS[kind].memory, losses.SupConLoss(), D, 17, memory_dtype=torch.float64)
    options: dict[str, Any] = {"is_masked": False, "has_ids": False}
    expected = from_first_rank(lambda: list(train(build(), "equal", 9, ranks=list(range(size)), **options)))
    with pytest.MonkeyPatch.context() as monkeypatch:
        read_as(monkeypatch, lambda _: False)
        found = list(train(build(shard_distributed=True), "equal", 9, ranks=[rank], **options))
    assert_close(found, expected)


# One row at a time, of which the first is kept; some rows, and some matrices; some rows, graphs and matrices.
BUDGETS = (
    _sharded_loss.Budget(part=1, large_part=1, read_rows=2**20, graphs=0, matrices=0),
    _sharded_loss.Budget(part=3000, large_part=3000, read_rows=2**20, graphs=0, matrices=200),
    _sharded_loss.Budget(part=1500, large_part=1500, read_rows=2**20, graphs=3000, matrices=100),
)


@pytest.mark.parametrize(
    ("loss_class", "miner", "number"),
    list(itertools.product(SHARDABLE, MINERS, range(len(BUDGETS))))[::7],  # prime to the others
)
@on_ranks(2, 3)
def test_a_rank_may_go_through_its_rows_a_few_at_a_time(
    loss_class: type[nn.Module], miner: str, number: int
) -> None:
    part_of_rows = _sharded_loss.PartOfRows
    with (
        patch.dict(_sharded_loss.BUDGETS, cpu=BUDGETS[number]),
        patch.object(_sharded_loss, "PartOfRows", wraps=part_of_rows) as parts,
    ):
        check_equal(
            partial(built, loss_class, miner), list(LAYOUTS)[number], 4, is_masked=False, has_ids=False
        )
    assert distributed.get_rank() > 0 or parts.call_count > 8  # in four steps


@pytest.mark.parametrize("strategy", ["hard", "easy"])
@on_ranks(3)
def test_of_rows_that_are_equally_far_the_first_in_the_queue_is_chosen(strategy: str) -> None:
    """Such rows are on one rank and on many; the gradient tells them apart."""
    distance, ranks = distances.DotProductSimilarity(normalize_embeddings=False), distributed.get_world_size()
    loss = losses.ContrastiveLoss(50, -50, distance=distance)
    miner = miners.BatchEasyHardMiner(strategy, strategy, distance=distance)
    build = partial(AdaptiveCrossBatchMemory, loss, D, 17, miner, memory_dtype=torch.float64)
    mine, alone, generator = build(shard_distributed=True), build(), torch.Generator().manual_seed(0)
    for _ in range(6):
        whole = torch.randint(-1, 2, (4 * ranks, D), generator=generator).double().requires_grad_()
        own = whole.detach().chunk(ranks)[distributed.get_rank()].requires_grad_()
        labels = torch.arange(4) % 2
        values = mine(own, labels), alone(whole, labels.repeat(ranks))
        assert_close(*values)
        (of_own,), (of_whole,) = map(torch.autograd.grad, values, (own, whole))
        assert_close(of_own / ranks, of_whole.chunk(ranks)[distributed.get_rank()])


MEMORIES = [
    (*case, number % 2 == 0)
    for number, case in enumerate(share_of(itertools.product(WRAPPERS, (17, 18), LAYOUTS), at_most=5))
]
MEMORIES.append(("measured gain", 17, "unequal", False))  # whose map learns


@pytest.mark.parametrize(("name", "size", "layout", "has_ids"), MEMORIES)
@on_ranks(2, 3)
def test_rows_labels_and_samples_are_those_of_one_process(
    name: str, size: int, layout: str, has_ids: bool
) -> None:
    """Through filling and wrap-arounds; some batches exceed a shard."""
    loss = losses.SupConLoss(reducer=reducers.MeanReducer())
    build = partial(KINDS[name].memory, loss, D, size, memory_dtype=torch.float64)
    check_equal(build, layout, 10, is_masked=False, has_ids=has_ids)


@on_ranks(2, timeout=300)
def test_many_steps_end_with_the_rows_of_one_process() -> None:
    """Errors of rounding do not add up."""
    build = partial(built, losses.SupConLoss, "multi-similarity")
    steps = 300 if IS_THOROUGH else 60
    check_equal(build, "unequal", steps, is_masked=False, has_ids=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@on_ranks(2)
def test_half_precision_is_that_of_one_process_up_to_rounding(dtype: torch.dtype) -> None:
    """Under autocast too."""
    build = partial(XBNWrapper, losses.SupConLoss(), D, 17, memory_dtype=dtype)
    mine, alone = build(shard_distributed=True), build()
    rank, size = distributed.get_rank(), distributed.get_world_size()
    for step in range(8):
        parts = [batch_of(r, step, 3 + r)[:2] for r in range(size)]
        with torch.autocast("cpu"):
            one, other = (
                loss_fn(torch.cat([x for x, _ in own]).to(dtype), torch.cat([y for _, y in own]))
                for loss_fn, own in ((mine, parts[rank : rank + 1]), (alone, parts))
            )
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    rows = torch.cat(of_all_ranks(mine.embedding_memory))
    torch.testing.assert_close(rows, alone.embedding_memory, rtol=2e-2, atol=2e-2)


# -- states ------------------------------------------------------------------------------------------------


def train_more(loss_fn: Any, layout: str = "unequal", steps: int = 7) -> list[list[Tensor]]:
    return list(train(loss_fn, layout, steps, ranks=[distributed.get_rank()], is_masked=False, has_ids=True))


def spread_memory(*, is_trained: bool) -> Any:
    loss_fn = KINDS["axbn"].memory(
        losses.SupConLoss(), D, 17, memory_dtype=torch.float64, shard_distributed=True
    )
    if is_trained:
        train_more(loss_fn)
    return loss_fn


def load_checkpoint(loss_fn: Any, folder: Path) -> None:
    state = {"loss": loss_fn.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    loss_fn.load_state_dict(state["loss"])


@on_ranks(2)
def test_a_checkpoint_goes_on_bit_for_bit(tmp_path: Path) -> None:
    first, second = spread_memory(is_trained=True), spread_memory(is_trained=False)
    checkpoint.save({"loss": first.state_dict()}, checkpoint_id=tmp_path)
    load_checkpoint(second, tmp_path)
    for one, other in zip(train_more(first), train_more(second), strict=True):
        assert all(map(torch.equal, one, other))


@on_ranks(2)
def test_the_state_of_another_rank_is_refused(tmp_path: Path) -> None:
    loss_fn = spread_memory(is_trained=True)
    torch.save(loss_fn.state_dict(), tmp_path / f"of rank {distributed.get_rank()}.pt")
    distributed.barrier()
    state = torch.load(tmp_path / "of rank 0.pt", weights_only=True)
    if distributed.get_rank() == 0:
        loss_fn.load_state_dict(state)
    else:
        with pytest.raises(ValueError, match="state is another rank's"):
            loss_fn.load_state_dict(state)


@on_ranks(2)
def test_a_state_before_torch_2_5_is_refused() -> None:
    loss_fn = spread_memory(is_trained=True)
    before_2_5 = patch.dict(sys.modules, {"torch.distributed.tensor": None})
    with before_2_5, pytest.raises(RuntimeError, match=r"update to torch 2\.5, or pass gather_distributed"):
        loss_fn.state_dict()


def save_trained_memory(folder: Path) -> None:
    loss_fn = spread_memory(is_trained=True)
    checkpoint.save({"loss": loss_fn.state_dict()}, checkpoint_id=folder)
    torch.save(torch.cat(of_all_ranks(loss_fn.embedding_memory)), folder / "rows.pt")


@pytest.fixture
def saved_by_two_ranks(pools: Pools, tmp_path: Path) -> Path:
    pools.run(save_trained_memory, 2, folder=tmp_path)
    return tmp_path


@on_ranks(3)
def test_a_checkpoint_of_another_number_of_ranks_has_the_same_rows(saved_by_two_ranks: Path) -> None:
    loss_fn = spread_memory(is_trained=False)
    load_checkpoint(loss_fn, saved_by_two_ranks)
    rows = torch.cat(of_all_ranks(loss_fn.embedding_memory))
    assert torch.equal(rows, torch.load(saved_by_two_ranks / "rows.pt"))
    train_more(loss_fn, "equal", 3)


# -- bytes -------------------------------------------------------------------------------------------------


@on_ranks(2, 3)
def test_what_is_sent_does_not_grow_with_the_memory() -> None:
    """And is what the docs say."""
    dim, size, ranks = 512, 32, distributed.get_world_size()
    found = [bytes_of_a_step(dim, size, memory_size) for memory_size in (400, 4000)]
    of_batch = (ranks - 1) * size * (8 * dim + 8)
    assert found[0] == found[1]
    assert found[0] <= 1.2 * of_batch + 150 * ranks * size + 16 * 1024, found
    assert found[0] >= of_batch


def bytes_of_a_step(dim: int, size: int, memory_size: int) -> int:
    """Counts the bytes of rows that come and of sums that go, and those that are reduced."""
    loss_fn = XBNWrapper(losses.SupConLoss(), dim, memory_size, shard_distributed=True)
    count, others = 0, distributed.get_world_size() - 1

    def counted(name: str, factor: float) -> Callable[..., Any]:
        collective = getattr(distributed, name)

        def call(first: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            tensor = first[0] if isinstance(first, list) else first
            count += round(factor * tensor.nbytes)
            return collective(first, *args, **kwargs)

        return call

    ranks = others + 1
    factors = {"all_gather": others, "all_reduce": 1, "all_to_all_single": others / ranks}
    with ExitStack() as patches:
        for step in range(4):
            inputs = torch.randn(size, dim, requires_grad=True)
            if step == 3:
                for name, factor in factors.items():
                    patches.enter_context(patch.object(distributed, name, counted(name, factor)))
            loss = loss_fn(inputs, torch.arange(size) % 4)
            before = count
            loss.backward()
            assert count == before  # nothing in the backward pass
    return count


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (
            losses.SupConLoss(),
            {"gather_distributed": True},
            "with gather_distributed=True",
        ),
        (
            losses.TripletMarginLoss(),
            {},
            "a TripletMarginLoss: pass .* or gather_dist",
        ),
        (
            losses.SupConLoss(),
            {"miner": miners.TripletMarginMiner()},
            "a SupConLoss and a TripletMarginMiner",
        ),
        (
            losses.SupConLoss(),
            {"miner": miners.BatchHardMiner(collect_stats=True)},
            "a hook, a regularizer or statistics",
        ),
        (
            losses.SupConLoss(embedding_regularizer=regularizers.LpRegularizer()),
            {},
            "without a hook, a regularizer",
        ),
        (losses.SupConLoss(), {"normalize_memory": True}, "normalize_memory=True and update='queue'"),
        (
            losses.SupConLoss(),
            {"update": "average", "update_momentum": 0.5},
            "update='average', which need",
        ),
    ],
)
def test_what_needs_all_rows_is_refused(loss: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        XBNWrapper(loss, 4, 8, shard_distributed=True, **options)


def test_a_hook_that_needs_all_rows_is_refused() -> None:
    loss_fn = AdaptiveCrossBatchMemory(losses.SupConLoss(), 4, 8, shard_distributed=True)
    with pytest.raises(ValueError, match="register an adapter such as MomentMatching"):
        loss_fn.register_memory_hook(lambda memory, *_: memory)
