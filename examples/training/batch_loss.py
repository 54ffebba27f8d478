"""The loss of a batch alone, which is that of the global batch on many ranks."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn
from torch.distributed.nn.functional import all_gather


class BatchLoss(nn.Module):
    """A loss and a miner without memory.

    On many ranks every rank computes the loss of the batch of all. Its gradient, which flows back to the rank
    that the embedding came from, arrives once from every rank there, and the mean over ranks that
    ``DistributedDataParallel`` takes makes it the gradient of a single process with the whole batch.

    Args:
        loss: takes (embeddings, labels, indices_tuple).
        miner: takes (embeddings, labels); None for all pairs.
    """

    def __init__(self, loss: nn.Module, miner: nn.Module | None) -> None:
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if distributed.is_initialized() and distributed.get_world_size() > 1:
            embeddings = torch.cat(all_gather(embeddings))
            parts = [torch.empty_like(labels) for _ in range(distributed.get_world_size())]
            distributed.all_gather(parts, labels)
            labels = torch.cat(parts)
        pairs = None if self.miner is None else self.miner(embeddings, labels)
        loss: Tensor = self.loss(embeddings, labels, pairs)
        return loss
