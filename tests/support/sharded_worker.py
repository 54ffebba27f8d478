"""Asserts that a memory that is spread over the ranks is that of one process."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from kinds import KINDS, WRAPPERS
from loss_worker import MARGINS
from pytorch_metric_learning import distances, losses, miners, reducers
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint

from pml_xbn import XBNWrapper
from pml_xbn.distributed import _sharded_loss
from pml_xbn.losses import AdaptiveCrossBatchMemory
from pml_xbn.pairwise._supported import SHARDED_LOSSES

D = 4
MINERS: dict[str, Callable[[], nn.Module | None]] = {
    "none": lambda: None,
    "pair margin": lambda: miners.PairMarginMiner(**MARGINS),
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
    """Yields loss, mean gradient, rows, labels and samples of all steps."""
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
        gradient = model.weight.grad.clone()
        memory = [loss_fn.embedding_memory, loss_fn.label_memory, loss_fn.id_memory]
        if is_rank:
            distributed.all_reduce(gradient)
            gradient /= distributed.get_world_size()
            memory = [of_all_shards(x) for x in memory]
        yield [loss.detach(), gradient, *(x.clone() for x in memory)]
        assert loss_fn.num_rows <= loss_fn.memory_size


def of_all_shards(values: Tensor) -> Tensor:
    shards: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(shards, values)
    return torch.cat(shards)


def check_equal(build: Callable[..., Any], layout: str, steps: int, **options: bool) -> None:
    rank, size = distributed.get_rank(), distributed.get_world_size()
    mine, alone = build(shard_distributed=True), build()
    found = train(mine, layout, steps, ranks=[rank], **options)
    expected = train(alone, layout, steps, ranks=list(range(size)), **options)
    for pair in zip(found, expected, strict=True):
        for one, other in zip(*pair, strict=True):
            assert_close(one, other)
        assert (mine.queue_idx, mine.num_rows) == (alone.queue_idx, alone.num_rows)


def assert_close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def built(loss_class: Any, miner: str, **options: Any) -> XBNWrapper:
    return XBNWrapper(loss_class().double(), D, 17, MINERS[miner](), memory_dtype=torch.float64, **options)


def check_losses(share: int) -> None:
    """Every share-th combination of a loss, a miner, a layout of the batch, and a mask or none."""
    cases = itertools.product(SHARDED_LOSSES, MINERS, LAYOUTS, (False, True))
    for loss_class, miner, layout, is_masked in itertools.islice(cases, 0, None, share):
        check_equal(partial(built, loss_class, miner), layout, 3, is_masked=is_masked, has_ids=False)


# One row at a time, of which the first is kept; some rows, and some matrices; some rows, graphs and matrices.
BUDGETS = (
    _sharded_loss.Budget(part=1, large_part=1, read_rows=2**20, graphs=0, matrices=0),
    _sharded_loss.Budget(part=3000, large_part=3000, read_rows=2**20, graphs=0, matrices=200),
    _sharded_loss.Budget(part=1500, large_part=1500, read_rows=2**20, graphs=3000, matrices=100),
)


def check_budgets() -> None:
    """The loss is that of one process however few rows a rank goes through at a time."""
    part_of_rows = _sharded_loss.PartOfRows
    cases = itertools.product(SHARDED_LOSSES, MINERS, zip(LAYOUTS, BUDGETS, strict=True))
    for loss, miner, (layout, budget) in itertools.islice(cases, 0, None, 7):  # prime to the others
        with (
            patch.dict(_sharded_loss.BUDGETS, cpu=budget),
            patch.object(_sharded_loss, "PartOfRows", wraps=part_of_rows) as parts,
        ):
            check_equal(partial(built, loss, miner), layout, 4, is_masked=False, has_ids=False)
        assert distributed.get_rank() > 0 or parts.call_count > 8  # in four steps


def check_ties() -> None:
    """Many rows are equally similar to an anchor, on one rank and on many; the gradient tells them apart."""
    distance, ranks = distances.DotProductSimilarity(normalize_embeddings=False), distributed.get_world_size()
    loss = losses.ContrastiveLoss(50, -50, distance=distance)
    for strategy in ("hard", "easy"):
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


def check_memories(share: int) -> None:
    """Every class through filling and wrap-arounds, with samples and without; some batches exceed a shard."""
    cases = itertools.product(WRAPPERS, (17, 18), LAYOUTS)
    for number, (name, size, layout) in enumerate(itertools.islice(cases, 0, None, share)):
        loss = losses.SupConLoss(reducer=reducers.MeanReducer())
        build = partial(KINDS[name].memory, loss, D, size, memory_dtype=torch.float64)
        check_equal(build, layout, 10, is_masked=False, has_ids=number % 2 == 0)


def check_many_steps(steps: int) -> None:
    """Errors of rounding do not add up."""
    build = partial(built, losses.SupConLoss, "multi-similarity")
    check_equal(build, "unequal", steps, is_masked=False, has_ids=True)


def check_state(folder: Path) -> None:
    """A state goes on bit for bit, and a checkpoint is loaded by all ranks together."""
    build = partial(KINDS["axbn"].memory, losses.SupConLoss(), D, 17, memory_dtype=torch.float64)
    first = build(shard_distributed=True)
    rank = distributed.get_rank()
    for _ in train(first, "unequal", 7, ranks=[rank], is_masked=False, has_ids=True):
        pass
    before_2_5 = patch.dict(sys.modules, {"torch.distributed.tensor": None})
    with before_2_5, pytest.raises(RuntimeError, match=r"update to torch 2\.5, or pass gather_distributed"):
        first.state_dict()
    checkpoint.save({"loss": first.state_dict()}, checkpoint_id=folder)
    second = build(shard_distributed=True)
    state = {"loss": second.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    second.load_state_dict(state["loss"])
    values = [
        list(train(loss_fn, "unequal", 7, ranks=[rank], is_masked=False, has_ids=True))
        for loss_fn in (first, second)
    ]
    for one, other in zip(*values, strict=True):
        assert all(map(torch.equal, one, other))
    torch.save(first.state_dict(), folder / f"of rank {rank}.pt")
    distributed.barrier()
    with pytest.raises(ValueError, match="state is another rank's") if rank else nullcontext():
        second.load_state_dict(torch.load(folder / "of rank 0.pt", weights_only=True))
    torch.save(of_all_shards(first.embedding_memory), folder / "rows.pt")
    checkpoint.save({"loss": first.state_dict()}, checkpoint_id=folder / "last")


def check_state_of_other_ranks(folder: Path) -> None:
    """A checkpoint of another number of ranks has the same rows."""
    loss_fn = KINDS["axbn"].memory(
        losses.SupConLoss(), D, 17, memory_dtype=torch.float64, shard_distributed=True
    )
    state = {"loss": loss_fn.state_dict()}
    checkpoint.load(state, checkpoint_id=folder / "last")
    loss_fn.load_state_dict(state["loss"])
    assert torch.equal(of_all_shards(loss_fn.embedding_memory), torch.load(folder / "rows.pt"))
    for _ in train(loss_fn, "equal", 3, ranks=[distributed.get_rank()], is_masked=False, has_ids=True):
        pass


def check_half_precision() -> None:
    """Half precision is within rounding of one process, under autocast too."""
    for dtype in (torch.float16, torch.bfloat16):
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
        rows = of_all_shards(mine.embedding_memory)
        torch.testing.assert_close(rows, alone.embedding_memory, rtol=2e-2, atol=2e-2)


# -- bytes -------------------------------------------------------------------------------------------------


def check_bytes() -> None:
    """What a rank sends and receives does not grow with the memory, and is what the docs say."""
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
