from __future__ import annotations

import numpy as np
import pytest
import torch
from kinds import MEMORIES
from pytorch_metric_learning.losses import ContrastiveLoss, CrossBatchMemory, SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import nn

from pml_xbn.diagnostics import ValidPairs, WatchedLoss


def count(seen: WatchedLoss, own: list[int], positive_above: float, negative_below: float) -> list[int]:
    """Pairs whose distance between unit vectors violates a margin."""
    anchors, rows = (x.double().numpy() for x in (seen.anchors, seen.rows))
    anchors, rows = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (anchors, rows))
    counts = dict.fromkeys(ValidPairs._fields, 0)
    for i, (anchor, label) in enumerate(zip(anchors, seen.anchor_labels.tolist(), strict=True)):
        for j, (row, row_label) in enumerate(zip(rows, seen.row_labels.tolist(), strict=True)):
            source = "batch" if j in own else "memory"
            distance = np.linalg.norm(anchor - row)
            if label == row_label and own[i] != j and distance > positive_above:
                counts[f"positives_from_{source}"] += 1
            if label != row_label and distance < negative_below:
                counts[f"negatives_from_{source}"] += 1
    return list(counts.values())


@pytest.mark.parametrize(
    ("loss", "miner", "positive_above", "negative_below"),
    [
        (lambda: ContrastiveLoss(pos_margin=0.3, neg_margin=0.9), None, 0.3, 0.9),
        (SupConLoss, lambda: PairMarginMiner(0.5, 1.2), 0.5, 1.2),
        (lambda: ContrastiveLoss(pos_margin=0.8, neg_margin=9), lambda: PairMarginMiner(0.2, 1), 0.8, 1),
    ],
    ids=["margin of the loss", "miner", "both"],
)
@pytest.mark.parametrize("memory", MEMORIES)
def test_pairs_are_those_that_violate_a_margin(
    memory: str, loss: type[nn.Module], miner: type | None, positive_above: float, negative_below: float
) -> None:
    loss_fn: CrossBatchMemory = MEMORIES[memory](loss(), 4, 20, miner() if miner else None)
    for _ in range(4):
        with WatchedLoss(loss_fn) as seen:
            loss_fn(torch.randn(8, 4, requires_grad=True), torch.arange(8) % 3)
        measured = [int(number) for number in seen.valid_pairs()]
        assert measured == count(seen, loss_fn.curr_batch_idx.tolist(), positive_above, negative_below)
    assert all(measured)


@pytest.mark.parametrize("memory", MEMORIES)
def test_first_call_has_pairs_from_the_batch_alone(memory: str) -> None:
    loss_fn = MEMORIES[memory](SupConLoss(), 4, 20)
    with WatchedLoss(loss_fn) as seen:
        loss_fn(torch.randn(8, 4, requires_grad=True), torch.arange(8) % 4)
    assert [int(number) for number in seen.valid_pairs()] == [8, 0, 48, 0]
