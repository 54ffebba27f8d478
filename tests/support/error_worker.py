"""Asserts that an error of one rank is raised on all, and what ranks may bring unlike each other."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from typing import Any
from unittest.mock import patch

import pytest
import torch
from pytorch_metric_learning.losses import (
    ContrastiveLoss,
    IntraPairVarianceLoss,
    NCALoss,
    NTXentLoss,
    SupConLoss,
)
from pytorch_metric_learning.miners import BatchHardMiner, MultiSimilarityMiner
from torch import Tensor, distributed, nn

from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, TwoTowerMemory
from pml_xbn.adapters import BaseAdapter, GroupMomentMatching, MomentMatching
from pml_xbn.diagnostics import WatchedLoss
from pml_xbn.losses import BatchLoss
from pml_xbn.memory._rows import Rows
from pml_xbn.pairwise import _pairs
from pml_xbn.pairwise._distances import Distances
from pml_xbn.pairwise._reductions import Count, Largest, LogSumExp, Max, Sum
from pml_xbn.pairwise._terms import Elements

D, M = 4, 40
FLOAT, DOUBLE = torch.float32, torch.float64
Call = Callable[[Any], object]
Errors = Iterator[tuple[str, Call]]  # what is raised, and a call that raises it on one of two ranks


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

    yield r"NaN or inf in rows \[2\]", lambda f: f(nan, labels)
    yield r"NaN or inf in rows \[2\]", lambda f: f.fill_memory(nan, labels)
    yield r"shape \(5, 3\)", lambda f: f(embeddings[:, : 3 if is_first else D], labels)
    yield "embeddings is a NoneType", lambda f: f(None if is_first else embeddings, labels)
    yield "labels is a list", lambda f: f(embeddings, labels.tolist() if is_second else labels)
    yield "50 rows to enqueue do not fit memory_size=40", lambda f: f(*batch_of(rank, size=25))
    yield r"has_enqueue_mask is \[0, 1\] on ranks 0 to 1", with_mask(mask if is_second else None)
    yield "enqueue_mask has dtype torch.int32", with_mask(mask.int() if is_first else mask)
    yield "sample_ids is a list", with_ids(ids.tolist() if is_first else ids)
    yield r"has_sample_ids is \[1, 0\] on ranks 0 to 1", with_ids(ids if is_first else None)
    yield "samples in rows .* have another label", with_ids(ids * 0 if is_second else ids + 9)


def errors_of_copies(rank: int) -> Errors:
    """Of a memory whose rows are on all ranks: given pairs, hooks, and ranks that differ."""
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

    def loaded_on_one(f: Any) -> None:
        other = copy.deepcopy(f)
        other.gather_distributed = False
        if is_first:
            other.fill_memory(embeddings, labels)
        other.gather_distributed = True
        other(embeddings, labels)

    given = (None, labels == 0) if is_first else (pairs, None)
    yield r"has_enqueue_mask is \[1, 0\]", lambda f: f(embeddings, labels, *given)
    yield "indices_tuple is a list", with_indices(*(x.tolist() if is_second else x for x in pairs))
    yield "numbers .7. for a batch of 5", with_indices(*(x + 4 * is_first for x in pairs))
    yield r"num_rows is \[15, 10\] on ranks 0 to 1: build, load", loaded_on_one
    yield "index 4 is out of bounds", with_hook


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

    yield r"is_grad_enabled is \[1, 0\]", without_gradient_on_one
    yield "pass a miner, or use gather_dist", lambda f: f(embeddings, labels, None if rank else pairs)
    yield "without a hook", lambda f: with_hook(f, "loss")
    yield "without a hook", lambda f: with_hook(f, "miner")


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

    for name in names:
        for on in (0, 1):
            yield "disk on fire", troubled(name, on)


def errors_of_batch_loss(rank: int) -> Errors:
    embeddings, labels = batch_of(rank, step=1)
    yield "embeddings is a NoneType", lambda f: f(None if rank else embeddings, labels)
    yield r"embedding_size is \[4, 3\] on ranks 0 to 1", lambda f: f(embeddings[:, : D - rank], labels)
    yield r"bits_of_dtype is \[64, 32\]", lambda f: f(embeddings.to(FLOAT if rank else DOUBLE), labels)


def errors_of_two_towers(rank: int) -> Errors:
    (queries, labels), (documents, _) = batch_of(rank, step=1), batch_of(rank, step=2)
    ids = torch.arange(5) + 5 * rank
    yield "2 queries and 5 documents", lambda f: f(queries[:2] if rank else queries, documents, labels)
    yield "labels is a list", lambda f: f(queries, documents, labels.tolist() if rank else labels)
    yield "sample_ids is a list", lambda f: f(queries, documents, labels, ids if rank else ids.tolist())
    yield r"sample_ids has shape \(4,\)", lambda f: f(queries, documents, labels, ids[rank:])


def check_errors(loss_fn: nn.Module, step: Callable[[], Tensor], errors: Errors) -> None:
    """Every error is raised on both ranks and changes nothing, and the next steps succeed."""
    step()
    before = str(loss_fn.state_dict())
    for message, call in errors:
        with pytest.raises(Exception, match=message):
            call(loss_fn)
        assert str(loss_fn.state_dict()) == before, message
    after = torch.stack([step().detach() for _ in range(2)])
    of_first = after.clone()
    distributed.broadcast(of_first, 0)
    assert torch.equal(of_first, after)


def check_all_errors(rank: int) -> None:
    embeddings, labels = batch_of(rank)
    options = {"gather_distributed": True}
    loss_fn = memory(SupConLoss(), **options)  # of which a rank computes its own anchors
    errors = itertools.chain(errors_of_memory(rank), errors_of_copies(rank))
    check_errors(loss_fn, lambda: loss_fn(embeddings, labels), errors)
    spread = memory(SupConLoss(), BatchHardMiner(), shard_distributed=True)
    errors = itertools.chain(errors_of_memory(rank), errors_of_shards(rank))
    check_errors(spread, lambda: spread(embeddings, labels), errors)
    whole = memory(Loss(), Miner(), **options)  # all anchors, as the classes are nobody's
    parts = errors_of_parts(rank, "loss", "miner")
    errors = itertools.chain(errors_of_memory(rank), errors_of_copies(rank), parts)
    check_errors(whole, lambda: whole(embeddings, labels), errors)
    batch = BatchLoss(Loss(), Miner(), **options)
    errors = itertools.chain(errors_of_batch_loss(rank), errors_of_parts(rank, "loss", "miner"))
    check_errors(batch, lambda: batch(embeddings, labels), errors)
    memories = {f"{name}_memory": memory(Loss(), **options) for name in ("document", "query")}
    towers = TwoTowerMemory(**memories)
    of_losses = errors_of_parts(rank, "document_memory.loss", "query_memory.loss")
    errors = itertools.chain(errors_of_two_towers(rank), of_losses)
    check_errors(towers, lambda: towers(embeddings, embeddings, labels), errors)


# -- failures in the middle --------------------------------------------------------------------------------


class FailsAt:
    """Raises at one of the places that a rank passes where it computes something with its own rows."""

    PLACES = (
        (Distances, "measure"),
        (Rows, "weighted_sum"),
        (Rows, "written_"),
        *((kind, "result") for kind in (Count, Largest, LogSumExp, Max, Sum)),
        (_pairs, "drop_self_pairs_"),
        (Elements, "totals"),
        (BaseAdapter, "estimate"),
        (MomentMatching, "map"),
        (GroupMomentMatching, "map_groups"),
        (Rows, "group_moments"),
    )

    def __init__(self, number: int) -> None:
        self.left = number
        self.has_failed = False

    def __call__(self, loss_fn: nn.Module, *arguments: Any, **options: Any) -> Tensor:
        with ExitStack() as patches:
            for kind, name in self.PLACES:
                patches.enter_context(patch.object(kind, name, self._counted(getattr(kind, name))))
            return loss_fn(*arguments, **options)  # type: ignore[no-any-return]

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == -1:
                self.has_failed = True
                raise OSError("disk on fire")
            return method(*args, **kwargs)

        return call


def check_failures_of_shards(rank: int) -> None:
    """Wherever one of the ranks fails, both raise, nothing changes, and the next step succeeds."""
    options: dict[str, Any] = {"memory_dtype": DOUBLE, "shard_distributed": True}
    for loss_fn in (
        memory(SupConLoss(), MultiSimilarityMiner(), shard_distributed=True, batch_loss_weight=0.5),
        PerClassXBN(IntraPairVarianceLoss(), D, M, BatchHardMiner(), **options),
        SuperClassXBN(NTXentLoss(), D, M, superclasses=[0, 0, 1], **options),
    ):
        ids = None if isinstance(loss_fn, AXBNWrapper) else torch.arange(5) + 5 * rank
        for step in range(3):
            loss_fn(*batch_of(rank, step), sample_ids=ids)
        embeddings, labels = batch_of(rank, 3)
        for on in (0, 1):
            before = str(loss_fn.state_dict())
            for number in itertools.count():
                fails, message = FailsAt(number if rank == on else -1), ""
                with suppress(OSError, RuntimeError):
                    fails(loss_fn, embeddings, labels, sample_ids=ids)
                    message = "none"
                had_failed = torch.tensor(fails.has_failed)
                distributed.broadcast(had_failed, on)
                if not had_failed:
                    break
                assert (message, str(loss_fn.state_dict())) == ("", before)
            assert number > 8
            assert message == "none"
        before = str(loss_fn.state_dict())
        loss_fn.eval()
        expected = loss_fn(embeddings, labels)
        with pytest.raises((OSError, RuntimeError), match="disk on fire"):
            FailsAt(3 if rank == 1 else -1)(loss_fn, embeddings, labels)
        assert torch.equal(loss_fn(embeddings, labels), expected)
        loss_fn.train()
        broken = (
            patch.object(Rows, "written_", side_effect=OSError("disk on fire"))
            if rank == 1
            else nullcontext()
        )
        with broken, pytest.raises((OSError, RuntimeError), match="disk on fire"):
            loss_fn.fill_memory(embeddings, labels)
        assert str(loss_fn.state_dict()) == before


# -- kinds -------------------------------------------------------------------------------------------------

# Of each rank: rows, dtype, and whether it passes an enqueue_mask.
KINDS = {
    "float64 and none": [(5, DOUBLE, False), (0, DOUBLE, False)],
    "float16 and bfloat16": [(5, torch.float16, False), (4, torch.bfloat16, False)],
    "mask and an empty batch": [(6, DOUBLE, True), (0, DOUBLE, True)],
    "mask of some and of all": [(6, DOUBLE, True), (1, DOUBLE, True)],
}


def losses_of(
    loss_fn: nn.Module, kinds: list[tuple[int, torch.dtype, bool]], ranks: list[int]
) -> list[Tensor]:
    """Loss and mean gradient of two steps, as one rank, or as one process with the batches of all."""
    values = []
    is_masked = any(size and has_mask for size, _, has_mask in kinds)
    factor = torch.ones(D, dtype=DOUBLE, requires_grad=True)
    for step in range(2):
        inputs, labels, masks = [], [], []
        for rank in ranks:
            size, dtype, has_mask = kinds[rank]
            x, y = batch_of(rank, step, size, dtype)
            inputs.append((x * factor).to(dtype))
            labels.append(y)
            masks.append(torch.arange(size) % 2 == 0 if has_mask or len(ranks) > 1 else None)
        mask = None if masks[0] is None or (len(ranks) > 1 and not is_masked) else torch.cat(masks)
        arguments = (torch.cat(inputs), torch.cat(labels))
        loss = loss_fn(*arguments) if mask is None else loss_fn(*arguments, None, mask)
        (gradient,) = torch.autograd.grad(loss, factor)
        if len(ranks) == 1:
            distributed.all_reduce(gradient)
            gradient /= distributed.get_world_size()
        values.append(torch.cat([loss.detach().double().view(1), gradient]))
    return values


def check_kinds(rank: int) -> None:
    make: dict[str, Callable[..., nn.Module]] = {
        "own anchors": lambda **options: memory(SupConLoss(), **options),
        "all anchors": lambda **options: memory(NCALoss(), **options),
        "batch": lambda **options: BatchLoss(ContrastiveLoss(), **options),
    }
    for name, build in make.items():
        for kind, kinds in KINDS.items():
            if name == "batch" and any(has_mask or dtype != DOUBLE for _, dtype, has_mask in kinds):
                continue
            found = losses_of(build(gather_distributed=True), kinds, [rank])
            expected = losses_of(build(), kinds, [0, 1])
            # Gradients of half precision are rounded on their way to the model.
            tolerance = 1e-6 if all(dtype != DOUBLE for _, dtype, _ in kinds) else 1e-9
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, msg=f"{name}, {kind}")


def check_hook_on_one_rank(rank: int) -> None:
    """As users log: then all ranks compute the loss of all anchors."""
    for part in ("loss", "miner"):
        hooked, plain = (memory(SupConLoss(), BatchHardMiner(), gather_distributed=True) for _ in range(2))
        if rank == 0:
            getattr(hooked, part).register_forward_hook(lambda *_: None)
        for step in range(3):
            values = [f(*batch_of(rank, step)) for f in (hooked, plain)]
            torch.testing.assert_close(*values, rtol=1e-9, atol=1e-9)


def check_watched(rank: int) -> None:
    """Sees the batch of all ranks."""
    loss_fn = memory(SupConLoss(), gather_distributed=True)
    loss_fn(*batch_of(rank))
    embeddings, labels = batch_of(rank, 1)
    with WatchedLoss(loss_fn) as seen:
        loss = loss_fn(embeddings.requires_grad_(), labels)
    loss.backward()
    own = seen.gradient.view(distributed.get_world_size(), *embeddings.shape)[rank]
    torch.testing.assert_close(embeddings.grad, own * distributed.get_world_size())


def check() -> None:
    check_all_errors(distributed.get_rank())
    check_failures_of_shards(distributed.get_rank())
    check_hook_on_one_rank(distributed.get_rank())
    check_watched(distributed.get_rank())
    check_kinds(distributed.get_rank())
