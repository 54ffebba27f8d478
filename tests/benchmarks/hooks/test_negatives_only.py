"""Positives from the batch, negatives from the batch and the memory."""

import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch.nn.functional import normalize

from benchmarks.hooks.negatives_only import take_negatives_only
from pml_xbn import XBNWrapper


def test_negatives_of_batch_and_memory_stand_beside_the_positives_of_the_batch() -> None:
    torch.manual_seed(0)
    memory = XBNWrapper(take_negatives_only(SupConLoss(0.1)), 8, 32)
    for _ in range(3):
        embeddings, labels = torch.randn(12, 8, requires_grad=True), torch.arange(12) % 3
        found = memory(embeddings, labels)
    anchors, rows = normalize(embeddings.double()), normalize(memory.embedding_memory.double())
    within, beyond = anchors @ anchors.T / 0.1, anchors @ rows.T / 0.1
    same, itself = labels[:, None] == labels, torch.eye(12, dtype=torch.bool)
    negatives = beyond.masked_fill(labels[:, None] == memory.label_memory, -torch.inf)
    total = torch.cat([within.masked_fill(itself, -torch.inf), negatives], dim=1).logsumexp(dim=1)
    positives = same & ~itself
    expected = (total - (within * positives).sum(dim=1) / positives.sum(dim=1)).mean()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)


def test_no_positive_is_a_row_with_a_miner_either() -> None:
    given, loss = [], SupConLoss()
    whole = loss.forward

    def record(*args: torch.Tensor) -> torch.Tensor:
        given.append(args[2])
        return whole(*args)

    loss.forward = record
    torch.manual_seed(0)
    miner = MultiSimilarityMiner(epsilon=1)
    memory = XBNWrapper(take_negatives_only(loss, miner), 8, 32, miner)
    for _ in range(3):
        memory(torch.randn(12, 8, requires_grad=True), torch.arange(12) % 3)
    assert len(given) == 3
    for _, positives, _, negatives in given:
        assert positives.max() < 12 <= negatives.max()
