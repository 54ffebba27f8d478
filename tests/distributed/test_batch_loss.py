from __future__ import annotations

import pytest
import torch
from across_ranks import mean_of_ranks
from pytorch_metric_learning.losses import ContrastiveLoss, MultipleLosses, ProxyAnchorLoss, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from ranks import on_ranks
from torch import Tensor, distributed, nn

from pml_xbn.losses import BatchLoss

SIZES = {2: [3, 5], 3: [3, 5, 0]}
LOSSES = {
    "pairs": lambda **options: BatchLoss(
        ContrastiveLoss(), PairMarginMiner(pos_margin=0.2, neg_margin=0.8), **options
    ),
    "proxies": lambda **options: BatchLoss(ProxyAnchorLoss(num_classes=4, embedding_size=3), **options),
}


def global_batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 5, dtype=torch.float64, generator=generator)
    return inputs, torch.tensor([0, 0, 1, 1, 0, 2, 2, 3])


def loss_and_gradients(name: str, inputs: Tensor, labels: Tensor, is_rank: bool) -> list[Tensor]:
    """The loss, and the gradients of the model and of the loss's own parameters."""
    torch.manual_seed(1)
    model = nn.Linear(5, 3).double()
    loss_fn = LOSSES[name](gather_distributed=is_rank).double()
    loss = loss_fn(model(inputs), labels)
    loss.backward()
    gradients = [p.grad for p in (*model.parameters(), *loss_fn.parameters()) if p.grad is not None]
    return [loss.detach(), *(mean_of_ranks(gradient) if is_rank else gradient for gradient in gradients)]


@pytest.mark.parametrize("name", LOSSES)
@on_ranks(2, 3)
def test_many_ranks_have_loss_and_gradient_of_one_process(name: str) -> None:
    rank, sizes = distributed.get_rank(), SIZES[distributed.get_world_size()]
    inputs, labels = global_batch()
    expected = loss_and_gradients(name, inputs, labels, is_rank=False)
    found = loss_and_gradients(name, inputs.split(sizes)[rank], labels.split(sizes)[rank], is_rank=True)
    assert len(found) == (4 if name == "proxies" else 3)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@on_ranks(2, 3)
def test_without_gradients_a_rank_waits_for_no_other() -> None:
    (inputs, labels), rank = global_batch(), distributed.get_rank()
    loss_fn = LOSSES["pairs"](gather_distributed=True)
    with torch.no_grad():
        for _ in range(1 + rank):
            loss_fn(inputs[: rank + 2], labels[: rank + 2])


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
