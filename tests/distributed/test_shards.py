"""A memory whose rows are spread over the ranks is the memory of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sharded_worker
from losses_on_ranks import SHARE
from on_ranks import on_ranks
from pytorch_metric_learning import losses, miners, regularizers

from pml_xbn import XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory


@pytest.mark.parametrize("ranks", [2, 3])
def test_loss_and_gradient_are_those_of_one_process(ranks: int) -> None:
    on_ranks(sharded_worker.check_losses, min(SHARE, 17), ranks=ranks, timeout=300)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_may_go_through_its_rows_a_few_at_a_time(ranks: int) -> None:
    on_ranks(sharded_worker.check_budgets, ranks=ranks)


def test_of_rows_that_are_equally_far_the_first_in_the_queue_is_chosen() -> None:
    on_ranks(sharded_worker.check_ties, ranks=3)


@pytest.mark.parametrize("ranks", [2, 3])
def test_rows_labels_and_samples_are_those_of_one_process(ranks: int) -> None:
    on_ranks(sharded_worker.check_memories, min(SHARE, 5), ranks=ranks)


def test_many_steps_end_with_the_rows_of_one_process() -> None:
    on_ranks(sharded_worker.check_many_steps, 300 if SHARE == 1 else 60)


def test_a_checkpoint_goes_on_bit_for_bit_and_loads_on_other_ranks(tmp_path: Path) -> None:
    on_ranks(sharded_worker.check_state, tmp_path, ranks=2)
    on_ranks(sharded_worker.check_state_of_other_ranks, tmp_path, ranks=3)


def test_half_precision_is_that_of_one_process() -> None:
    on_ranks(sharded_worker.check_half_precision)


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_sent_does_not_grow_with_the_memory(ranks: int) -> None:
    on_ranks(sharded_worker.check_bytes, ranks=ranks)


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
            "a TripletMarginLoss and a NoneType: pass .* or gather_dist",
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
