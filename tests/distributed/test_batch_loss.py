from __future__ import annotations

import batch_loss_worker
import pytest
import torch
from on_ranks import on_ranks
from pytorch_metric_learning.losses import MultipleLosses, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner

from pml_xbn.losses import BatchLoss


@pytest.mark.parametrize("ranks", [2, 3])
def test_many_ranks_have_loss_and_gradient_of_one_process(ranks: int) -> None:
    on_ranks(batch_loss_worker.check, ranks=ranks)


def test_on_one_process_it_is_the_loss_of_the_miners_pairs() -> None:
    loss, miner = SupConLoss(), PairMarginMiner(pos_margin=0.9, neg_margin=0.1)
    embeddings, labels = torch.randn(8, 4), torch.arange(8) % 3
    expected = loss(embeddings, labels, miner(embeddings, labels))
    assert torch.equal(BatchLoss(loss, miner)(embeddings, labels), expected)


def test_loss_and_miner_need_not_take_references() -> None:
    loss, miner = SupConLoss(), PairMarginMiner(pos_margin=0.9, neg_margin=0.1)
    embeddings, labels = torch.randn(8, 4), torch.arange(8) % 3
    of_batch = BatchLoss(MultipleLosses([loss]), lambda embeddings, labels: miner(embeddings, labels))
    assert torch.equal(of_batch(embeddings, labels), BatchLoss(loss, miner)(embeddings, labels))


@pytest.mark.parametrize(
    ("embeddings", "error", "message"),
    [
        ([[0.0]], TypeError, "embeddings is a list: pass a tensor"),
        (torch.zeros(()), ValueError, r"embeddings has shape \(\): pass one row per embedding, \(n, d\)"),
    ],
)
def test_bad_embeddings_are_named(embeddings: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BatchLoss(SupConLoss())(embeddings, torch.zeros(1, dtype=torch.int64))
