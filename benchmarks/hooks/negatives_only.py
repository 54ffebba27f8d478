"""A loss in a memory, whose positives come from the batch and whose negatives come from both."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor, nn


def take_negatives_only(loss: nn.Module, miner: nn.Module | None = None) -> nn.Module:
    """Has a loss take its positives from the batch, which have a gradient, whatever rows it is given.

    The batch is stored before the loss, so each of its negatives is counted a second time, as a row.

    Args:
        loss: of PML, which takes pairs. Its own ``forward`` is replaced, as a memory takes losses by class.
        miner: of PML, mines within the batch as the memory's own does beyond it; None: all pairs.

    Returns:
        The loss, which is to be wrapped by a memory.
    """
    whole: Any = loss.forward

    def forward(
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Any:
        mined = None if miner is None else miner(embeddings, labels)
        anchors, positives, own, negatives = lmu.convert_to_pairs(mined, labels)
        if ref_emb is None or ref_labels is None:
            return whole(embeddings, labels, (anchors, positives, own, negatives))
        _, _, beyond, rows = lmu.convert_to_pairs(indices_tuple, labels, ref_labels)
        own, negatives = torch.cat([own, beyond]), torch.cat([negatives, rows + embeddings.shape[0]])
        ref_emb, ref_labels = torch.cat([embeddings, ref_emb]), torch.cat([labels, ref_labels])
        return whole(embeddings, labels, (anchors, positives, own, negatives), ref_emb, ref_labels)

    loss.forward = forward
    return loss
