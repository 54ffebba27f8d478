"""What one rank raises, all raise; and what ranks may bring unlike each other."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any
from unittest.mock import patch

import pytest
import torch
from across_ranks import assert_equal_on_ranks, mean_of_ranks
from exact import exact
from fails_at import FailsAt
from pytorch_metric_learning.losses import (
    ContrastiveLoss,
    IntraPairVarianceLoss,
    NCALoss,
    NTXentLoss,
    SupConLoss,
)
from pytorch_metric_learning.miners import BatchHardMiner, MultiSimilarityMiner
from pytorch_metric_learning.reducers import DivisorReducer
from ranks import on_ranks
from torch import Tensor, distributed, nn

from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, TwoTowerMemory
from pml_xbn.diagnostics import RowTracker, WatchedLoss, memory_rows
from pml_xbn.losses import BatchLoss
from pml_xbn.memory._rows import Rows

D, M = 4, 40
FLOAT, DOUBLE = torch.float32, torch.float64
Call = Callable[[Any], object]
Errors = dict[
    str, tuple[str, Call]
]  # by a name: what is raised, and a call that raises it on one of two ranks


class Troubled(nn.Module):
    """A mixin of a loss or miner that raises once it is told to."""

    is_troubled = False

    def forward(self, *args: Any) -> Any:
        if self.is_troubled:
            raise OSError("disk on fire")
        return super().forward(*args)


class Loss(Troubled, SupConLoss):
    pass


class Miner(Troubled, BatchHardMiner):
    pass


def memory(loss: nn.Module, miner: nn.Module | None = None, **options: Any) -> AXBNWrapper:
    return AXBNWrapper(loss, D, M, miner, measurement_noise=9.0, memory_dtype=DOUBLE, **options)


def batch_of(rank: int, step: int = 0, size: int = 5, dtype: torch.dtype = DOUBLE) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(size, D, generator=generator).to(dtype), torch.arange(size) % 3


# -- errors ------------------------------------------------------------------------------------------------


def errors_of_memory(rank: int) -> Errors:
    """Of every memory, whether its rows are on all ranks or spread over them."""
    embeddings, labels = batch_of(rank, step=1)
    mask, ids = labels == 0, torch.arange(5)
    is_first, is_second = rank == 0, rank == 1
    nan = embeddings.clone()
    nan[2] = float("nan") if is_second else 0.0

    def with_mask(mask: Tensor | None) -> Call:
        return lambda f: f(embeddings, labels, None, mask)

    def with_ids(ids: Any) -> Call:
        return lambda f: f(embeddings, labels, sample_ids=ids)

    return {
        "NaN": (r"NaN or inf in rows \[2\]", lambda f: f(nan, labels)),
        "NaN to fill with": (r"NaN or inf in rows \[2\]", lambda f: f.fill_memory(nan, labels)),
        "size": (r"shape \(5, 3\)", lambda f: f(embeddings[:, : 3 if is_first else D], labels)),
        "no embeddings": ("embeddings is a NoneType", lambda f: f(None if is_first else embeddings, labels)),
        "list of labels": (
            "labels is a list",
            lambda f: f(embeddings, labels.tolist() if is_second else labels),
        ),
        "too many": ("50 rows to enqueue do not fit memory_size=40", lambda f: f(*batch_of(rank, size=25))),
        "mask on one": (
            r"has_enqueue_mask is \[0, 1\] on ranks 0 to 1",
            with_mask(mask if is_second else None),
        ),
        "dtype of mask": (
            "enqueue_mask has dtype torch.int32",
            with_mask(mask.int() if is_first else mask),
        ),
        "list of ids": ("sample_ids is a list", with_ids(ids.tolist() if is_first else ids)),
        "ids on one": (r"has_sample_ids is \[1, 0\] on ranks 0 to 1", with_ids(ids if is_first else None)),
        "another label": (
            "samples in rows .* have another label",
            with_ids(ids * 0 if is_second else ids + 9),
        ),
    }


def errors_of_copies(rank: int) -> Errors:
    """Of a memory whose rows are on all ranks: given pairs, hooks, reducers, and ranks that differ."""
    embeddings, labels = batch_of(rank, step=1)
    pairs, is_first, is_second = (torch.tensor([0]), torch.tensor([3])) * 2, rank == 0, rank == 1

    def with_indices(*indices: Any) -> Call:
        return lambda f: f(embeddings, labels, indices)

    def with_hook(f: Any) -> None:
        handle = f.register_memory_hook(lambda memory, *_: memory[0, 4 if is_first else 0] * 0 + memory)
        try:
            f(embeddings, labels)
        finally:
            handle.remove()

    def with_divisors_on_one(f: Any) -> None:
        reducer = f.loss.reducer
        f.loss.reducer = DivisorReducer() if is_second else reducer
        try:
            f(embeddings, labels)
        finally:
            f.loss.reducer = reducer

    def loaded_on_one(f: Any) -> None:
        other = copy.deepcopy(f)
        other.gather_distributed = False
        if is_first:
            other.fill_memory(embeddings, labels)
        other.gather_distributed = True
        other(embeddings, labels)

    given = (None, labels == 0) if is_first else (pairs, None)
    return {
        "pairs on one": (r"has_enqueue_mask is \[1, 0\]", lambda f: f(embeddings, labels, *given)),
        "list of pairs": (
            "indices_tuple is a list",
            with_indices(*(x.tolist() if is_second else x for x in pairs)),
        ),
        "pairs of no row": (
            "numbers .7. for a batch of 5",
            with_indices(*(x + 4 * is_first for x in pairs)),
        ),
        "loaded on one": (r"num_rows is \[15, 10\] on ranks 0 to 1: build, load", loaded_on_one),
        "hook": ("index 4 is out of bounds", with_hook),
        "divisors on one": ("SupConLoss with DivisorReducer|'divisor'", with_divisors_on_one),
    }


def errors_of_shards(rank: int) -> Errors:
    """Of a memory whose rows are spread over the ranks."""
    embeddings, labels = batch_of(rank, step=1)
    pairs = (torch.tensor([0]), torch.tensor([3])) * 2

    def with_hook(f: Any, part: str) -> None:
        hooked = getattr(f, part) if rank == 0 else nn.Identity()
        with hooked.register_forward_hook(lambda *_: None):
            f(embeddings, labels)

    def without_gradient_on_one(f: Any) -> None:
        f.eval()
        try:
            with torch.set_grad_enabled(rank == 0):
                f(embeddings.requires_grad_(), labels)
        finally:
            f.train()

    return {
        "gradient on one": (r"is_grad_enabled is \[1, 0\]", without_gradient_on_one),
        "pairs on one": (
            "pass a miner, or use gather_dist",
            lambda f: f(embeddings, labels, None if rank else pairs),
        ),
        "hook of the loss": ("without a hook", lambda f: with_hook(f, "loss")),
        "hook of the miner": ("without a hook", lambda f: with_hook(f, "miner")),
    }


def errors_of_parts(rank: int, *names: str) -> Errors:
    """Of losses and miners, by their names as attributes."""
    embeddings, labels = batch_of(rank, step=1)

    def troubled(name: str, on: int) -> Call:
        def call(f: Any) -> None:
            part = operator.attrgetter(name)(f)
            part.is_troubled = rank == on
            try:
                f(embeddings, *([embeddings] if isinstance(f, TwoTowerMemory) else []), labels)
            finally:
                part.is_troubled = False

        return call

    return {f"{name} on rank {on}": ("disk on fire", troubled(name, on)) for name in names for on in (0, 1)}


def errors_of_batch_loss(rank: int) -> Errors:
    embeddings, labels = batch_of(rank, step=1)
    return {
        "no embeddings": ("embeddings is a NoneType", lambda f: f(None if rank else embeddings, labels)),
        "size": (
            r"embedding_size is \[4, 3\] on ranks 0 to 1",
            lambda f: f(embeddings[:, : D - rank], labels),
        ),
        "dtype": (
            r"bits_of_dtype is \[64, 32\]",
            lambda f: f(embeddings.to(FLOAT if rank else DOUBLE), labels),
        ),
    }


def errors_of_two_towers(rank: int) -> Errors:
    (queries, labels), (documents, _) = batch_of(rank, step=1), batch_of(rank, step=2)
    ids = torch.arange(5) + 5 * rank
    return {
        "queries": (
            "2 queries and 5 documents",
            lambda f: f(queries[:2] if rank else queries, documents, labels),
        ),
        "list of labels": (
            "labels is a list",
            lambda f: f(queries, documents, labels.tolist() if rank else labels),
        ),
        "list of ids": (
            "sample_ids is a list",
            lambda f: f(queries, documents, labels, ids if rank else ids.tolist()),
        ),
        "number of ids": (
            r"sample_ids has shape \(4,\)",
            lambda f: f(queries, documents, labels, ids[rank:]),
        ),
    }


GATHERED = {"gather_distributed": True}
FALLIBLE: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Errors]]] = {
    "own anchors": (  # of which a rank computes its own
        lambda: memory(SupConLoss(), **GATHERED),
        lambda rank: errors_of_memory(rank) | errors_of_copies(rank),
    ),
    "spread": (
        lambda: memory(SupConLoss(), BatchHardMiner(), shard_distributed=True),
        lambda rank: errors_of_memory(rank) | errors_of_shards(rank),
    ),
    "all anchors": (  # as the classes are nobody's
        lambda: memory(Loss(), Miner(), **GATHERED),
        lambda rank: errors_of_memory(rank) | errors_of_copies(rank) | errors_of_parts(rank, "loss", "miner"),
    ),
    "batch loss": (
        lambda: BatchLoss(Loss(), Miner(), **GATHERED),
        lambda rank: errors_of_batch_loss(rank) | errors_of_parts(rank, "loss", "miner"),
    ),
    "two towers": (
        lambda: TwoTowerMemory(
            document_memory=memory(Loss(), **GATHERED), query_memory=memory(Loss(), **GATHERED)
        ),
        lambda rank: (
            errors_of_two_towers(rank) | errors_of_parts(rank, "document_memory.loss", "query_memory.loss")
        ),
    ),
}


@pytest.mark.parametrize(
    ("kind", "error"), [(kind, error) for kind, (_, errors) in FALLIBLE.items() for error in errors(0)]
)
@on_ranks(2)
def test_an_error_of_one_rank_is_raised_on_all_and_changes_nothing(kind: str, error: str) -> None:
    build, errors = FALLIBLE[kind]
    loss_fn, rank = build(), distributed.get_rank()
    message, call = errors(rank)[error]
    embeddings, labels = batch_of(rank)
    arguments = (embeddings, embeddings, labels) if kind == "two towers" else (embeddings, labels)
    loss_fn(*arguments)
    before = exact(loss_fn)
    with pytest.raises(Exception, match=message):
        call(loss_fn)
    assert exact(loss_fn) == before
    assert_equal_on_ranks(torch.stack([loss_fn(*arguments).detach() for _ in range(2)]))


# -- failures in the middle --------------------------------------------------------------------------------

SPREAD: dict[str, Callable[..., Any]] = {
    "axbn": lambda **options: AXBNWrapper(
        SupConLoss(), D, M, MultiSimilarityMiner(), measurement_noise=9.0, batch_loss_weight=0.5, **options
    ),
    "per class": lambda **options: PerClassXBN(IntraPairVarianceLoss(), D, M, BatchHardMiner(), **options),
    "super-class": lambda **options: SuperClassXBN(NTXentLoss(), D, M, superclasses=[0, 0, 1], **options),
}


def spread_memory(name: str, steps: int) -> tuple[Any, Tensor | None]:
    """A memory after so many steps, and what samples this rank brings."""
    loss_fn, rank = SPREAD[name](memory_dtype=DOUBLE, shard_distributed=True), distributed.get_rank()
    ids = None if name == "axbn" else torch.arange(5) + 5 * rank
    for step in range(steps):
        loss_fn(*batch_of(rank, step), sample_ids=ids)
    return loss_fn, ids


@pytest.mark.parametrize(("failing", "steps"), [(0, 3), (1, 4), (1, 1)])
@pytest.mark.parametrize("name", SPREAD)
@on_ranks(2)
def test_wherever_a_rank_fails_all_raise_and_the_next_step_succeeds(
    name: str, failing: int, steps: int
) -> None:
    rank = distributed.get_rank()
    loss_fn, ids = spread_memory(name, steps)  # it adapts after one, and is full after four
    embeddings, labels = batch_of(rank, 3)
    before = exact(loss_fn)
    for number in itertools.count():
        fails, message = FailsAt(number if rank == failing else -1), ""
        with suppress(OSError, RuntimeError):
            fails(loss_fn, embeddings, labels, sample_ids=ids)
            message = "none"
        had_failed = torch.tensor(fails.has_failed)
        distributed.broadcast(had_failed, failing)
        if not had_failed:
            break
        assert (message, exact(loss_fn)) == ("", before)
    assert number > 8
    assert message == "none"


@pytest.mark.parametrize("name", SPREAD)
@on_ranks(2)
def test_a_failure_in_evaluation_is_raised_on_all(name: str) -> None:
    rank = distributed.get_rank()
    loss_fn, _ = spread_memory(name, 5)
    embeddings, labels = batch_of(rank, 3)
    loss_fn.eval()
    expected = loss_fn(embeddings, labels)
    with pytest.raises((OSError, RuntimeError), match="disk on fire"):
        FailsAt(3 if rank == 1 else -1)(loss_fn, embeddings, labels)
    assert torch.equal(loss_fn(embeddings, labels), expected)


@pytest.mark.parametrize("name", SPREAD)
@on_ranks(2)
def test_a_failure_to_fill_is_raised_on_all_and_changes_nothing(name: str) -> None:
    rank = distributed.get_rank()
    loss_fn, _ = spread_memory(name, 5)
    before = exact(loss_fn)
    broken = patch.object(Rows, "written_", side_effect=OSError("disk on fire"))
    with (
        broken if rank == 1 else nullcontext(),
        pytest.raises((OSError, RuntimeError), match="disk on fire"),
    ):
        loss_fn.fill_memory(*batch_of(rank, 3))
    assert exact(loss_fn) == before


# -- kinds -------------------------------------------------------------------------------------------------

LOSSES: dict[str, Callable[..., nn.Module]] = {
    "own anchors": lambda **options: memory(SupConLoss(), **options),
    "all anchors": lambda **options: memory(NCALoss(), **options),
    "batch": lambda **options: BatchLoss(ContrastiveLoss(), **options),
}
# Of each rank: rows, dtype, and whether it passes an enqueue_mask.
BROUGHT = {
    "float64 and none": [(5, DOUBLE, False), (0, DOUBLE, False)],
    "float16 and bfloat16": [(5, torch.float16, False), (4, torch.bfloat16, False)],
    "mask and an empty batch": [(6, DOUBLE, True), (0, DOUBLE, True)],
    "mask of some and of all": [(6, DOUBLE, True), (1, DOUBLE, True)],
}
MEMORIES_ALONE = [("batch", brought) for brought in BROUGHT if brought != "float64 and none"]


def losses_of(
    loss_fn: nn.Module, brought: list[tuple[int, torch.dtype, bool]], ranks: list[int]
) -> list[Tensor]:
    """Loss and mean gradient of two steps, as one rank, or as one process with the batches of all."""
    values = []
    is_masked = any(size and has_mask for size, _, has_mask in brought)
    factor = torch.ones(D, dtype=DOUBLE, requires_grad=True)
    for step in range(2):
        inputs, labels, masks = [], [], []
        for rank in ranks:
            size, dtype, has_mask = brought[rank]
            x, y = batch_of(rank, step, size, dtype)
            inputs.append((x * factor).to(dtype))
            labels.append(y)
            masks.append(torch.arange(size) % 2 == 0 if has_mask or len(ranks) > 1 else None)
        mask = None if masks[0] is None or (len(ranks) > 1 and not is_masked) else torch.cat(masks)
        arguments = (torch.cat(inputs), torch.cat(labels))
        loss = loss_fn(*arguments) if mask is None else loss_fn(*arguments, None, mask)
        (gradient,) = torch.autograd.grad(loss, factor)
        gradient = mean_of_ranks(gradient) if len(ranks) == 1 else gradient
        values.append(torch.cat([loss.detach().double().view(1), gradient]))
    return values


@pytest.mark.parametrize(
    ("name", "brought"), [pair for pair in itertools.product(LOSSES, BROUGHT) if pair not in MEMORIES_ALONE]
)
@on_ranks(2)
def test_ranks_that_bring_other_kinds_of_batches_are_one_process(name: str, brought: str) -> None:
    of_ranks = BROUGHT[brought]
    found = losses_of(LOSSES[name](gather_distributed=True), of_ranks, [distributed.get_rank()])
    expected = losses_of(LOSSES[name](), of_ranks, [0, 1])
    # Gradients of half precision are rounded on their way to the model.
    tolerance = 1e-6 if all(dtype != DOUBLE for _, dtype, _ in of_ranks) else 1e-9
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("part", ["loss", "miner"])
@on_ranks(2)
def test_a_hook_that_one_rank_logs_with_changes_no_loss(part: str) -> None:
    """All ranks then compute the loss of all anchors."""
    hooked, plain = (memory(SupConLoss(), BatchHardMiner(), gather_distributed=True) for _ in range(2))
    if distributed.get_rank() == 0:
        getattr(hooked, part).register_forward_hook(lambda *_: None)
    for step in range(3):
        values = [f(*batch_of(distributed.get_rank(), step)) for f in (hooked, plain)]
        torch.testing.assert_close(*values, rtol=1e-9, atol=1e-9)


@on_ranks(2)
def test_diagnostics_refuse_rows_that_are_spread_and_do_not_disturb_others() -> None:
    rank, spread = distributed.get_rank(), memory(SupConLoss(), shard_distributed=True)
    for measure in (WatchedLoss, RowTracker, memory_rows):
        with pytest.raises(ValueError, match="are spread over ranks"):
            measure(spread)
    watched = memory(SupConLoss(), gather_distributed=True)
    with WatchedLoss(watched):
        spread(*batch_of(rank))
        watched(batch_of(rank)[0].requires_grad_(), batch_of(rank)[1])
    assert spread.num_rows == 10


@on_ranks(2)
def test_a_watched_loss_sees_the_batch_of_all_ranks() -> None:
    rank, loss_fn = distributed.get_rank(), memory(SupConLoss(), gather_distributed=True)
    loss_fn(*batch_of(rank))
    embeddings, labels = batch_of(rank, 1)
    with WatchedLoss(loss_fn) as seen:
        loss = loss_fn(embeddings.requires_grad_(), labels)
    loss.backward()
    own = seen.gradient.view(distributed.get_world_size(), *embeddings.shape)[rank]
    torch.testing.assert_close(embeddings.grad, own * distributed.get_world_size())
