"""A memory's call on many ranks, each of which holds all rows, or a shard of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..adapters.base_adapter import BaseAdapter
from ..distributed._collectives import same_draws
from ..distributed._exchange import Exchange
from ..distributed._global_batch import Report, batch_of_all_ranks, gathered
from ..distributed._sharded_loss import part_of_loss, whole_loss
from ..memory._batch import Batch
from ..pairwise import (
    SHARDED_LOSSES,
    SHARDED_MINERS,
    Share,
    attached,
    can_be_sharded,
    recipe_to_share,
    share_against,
)
from ..pairwise._forms import Recipe
from ._input import check_num_rows
from ._step import comparison, loss_alone, loss_with_memory, stored

if TYPE_CHECKING:
    from .adaptive_cross_batch_memory import AdaptiveCrossBatchMemory as Memory


def checked_on_ranks(
    memory: Memory, check: Callable[[], tuple[Batch, bool]], is_stored: bool
) -> tuple[Batch, list[Report] | None, bool]:
    """Returns the batch, the reports of all ranks if they compute together, and whether to store it.

    If ``check``, which is :func:`checked`, raises on one rank, this raises on all.
    """
    contents = memory.queue.contents
    state = {
        "memory_size": contents.rows.num_places,
        "num_rows": len(contents.rows),
        "queue_idx": contents.position,
        "num_calls": contents.num_calls,
        "training": is_stored,
    }
    batch, reports = gathered(check, state)
    check_num_rows(len(batch.rows), contents.rows.num_places)
    is_stored = all(report.is_storable for report in reports)
    return batch, reports if is_stored or memory._is_sharded else None, is_stored


def fill(memory: Memory, batch: Batch, reports: list[Report] | None) -> None:
    """Stores the batch, on many ranks if there are reports of them, and adapts nothing."""
    with nullcontext() if reports is None else Exchange(has_reductions=memory._is_sharded).at_end():
        stored(memory, batch, is_fill=True)


def loss_on_ranks(memory: Memory, batch: Batch, reports: list[Report], is_stored: bool) -> Tensor:
    """Returns the loss of the batch of all ranks, with this rank's part of its gradient."""
    if memory._is_sharded:
        return _loss_on_shards(memory, batch, reports, is_stored)
    is_warming_up = memory.queue.contents.num_calls < memory.warmup
    recipe = None if is_warming_up else recipe_to_share(memory.loss, memory.miner)
    if recipe is not None:
        return _loss_of_shares(memory, batch, reports, recipe)
    whole = batch_of_all_ranks(batch, reports)
    with Exchange().at_end():
        contents = stored(memory, batch)
        with same_draws(reports[0].seed, batch.rows.device):
            loss = loss_with_memory(memory, whole, contents)
        if loss.numel() != 1:  # with which the backward pass of one rank would fail, and the others wait
            raise TypeError(
                f"{type(memory.loss).__name__} returned shape {tuple(loss.shape)}: give it a reducer that "
                "returns a scalar, such as MeanReducer"
            )
    return loss


def _loss_of_shares(memory: Memory, batch: Batch, reports: list[Report], recipe: Recipe) -> Tensor:
    """Returns the loss, of which every rank computes the terms of its own anchors."""
    whole = batch_of_all_ranks(batch, reports) if memory.batch_loss_weight else batch
    loss, share = batch.anchors.new_zeros(()), Share(memory.loss, recipe, batch.anchors)
    exchange = Exchange(len(share.totals))
    with exchange.at_end():
        contents = stored(memory, batch)
        compared = None if contents is None else comparison(memory, batch, contents)
        if compared is not None:
            share = share_against(compared, recipe)
            exchange.values = share.totals
        if memory.batch_loss_weight:
            with same_draws(reports[0].seed, batch.rows.device):
                loss = memory.batch_loss_weight * loss_alone(memory, whole)
    share.totals = exchange.by_rank.sum(dim=0)
    value, gradients = share.value()
    # Of which the mean over ranks is taken.
    return loss + attached(value, [len(reports) * gradient for gradient in gradients], share.inputs)


def _loss_on_shards(memory: Memory, batch: Batch, reports: list[Report], is_stored: bool) -> Tensor:
    """Returns the loss of the batch of all ranks against rows that are spread over them."""
    whole, loss, part = batch_of_all_ranks(batch, reports), batch.anchors.new_zeros(()), None
    with Exchange(has_reductions=True).at_end():
        contents = stored(memory, batch) if is_stored else memory.queue.contents._replace(newest=None)
        if contents is None:
            loss = loss_alone(memory, whole)
        else:
            part = part_of_loss(memory.loss, memory.miner, whole, contents)
            if is_stored and memory.batch_loss_weight:
                loss = memory.batch_loss_weight * loss_alone(memory, whole)
    return loss if part is None else loss + whole_loss(memory.loss, *part, batch, reports)


def check_sharded(memory: Memory) -> None:
    """Refuses what needs all rows in one place."""
    if memory.gather_distributed:
        raise ValueError(
            "gather_distributed=True and shard_distributed=True: pass the first for all rows on every rank, "
            "or the second to spread them over the ranks"
        )
    if memory.normalize_memory or memory.update != "queue":
        raise ValueError(
            f"shard_distributed=True with normalize_memory={memory.normalize_memory} and "
            f"update={memory.update!r}: pass False and 'queue', or gather_distributed=True instead"
        )
    if not can_be_sharded(memory.loss, memory.miner):
        names = (type(part).__name__ for part in (memory.loss, memory.miner))
        losses, miners = (
            ", ".join(sorted(kind.__name__ for kind in kinds)) for kinds in (SHARDED_LOSSES, SHARDED_MINERS)
        )
        raise ValueError(
            f"shard_distributed=True with a {' and a '.join(names)}: pass a loss of {losses}, without a "
            f"regularizer, and no miner or one of {miners}, without statistics, or pass "
            "gather_distributed=True instead"
        )


def check_sharded_hook(hook: Any) -> None:
    """Refuses a hook that is called with all rows."""
    if not isinstance(hook, BaseAdapter):
        raise ValueError(
            f"hook is a {type(hook).__name__}, which needs all rows, and shard_distributed=True spreads "
            "them: register an adapter such as MomentMatching, or pass gather_distributed=True instead"
        )
