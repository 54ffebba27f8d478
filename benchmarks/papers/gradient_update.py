"""A memory whose rows learn, as proxies do."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor
from torch.nn.functional import normalize

from pml_xbn.losses import AdaptiveCrossBatchMemory


class GradientUpdate(AdaptiveCrossBatchMemory):
    r"""Cross-batch memory whose rows take a step against the gradient of every loss.

    .. math:: \tilde v \leftarrow \tilde v - \alpha\, \partial L / \partial \tilde v

    at unit length (Cross-Batch Memory, supplement §2, Tables 2 and 7). The paper prints a plus, but optimizes
    rows as proxies, so descent is meant. L is the loss against the memory alone. On one process.
    """

    def __init__(self, *args: Any, update_learning_rate: float, **options: Any) -> None:
        if options.get("gather_distributed"):
            raise ValueError("--update gradient on many ranks: run it on one")
        super().__init__(*args, **options)
        self.update_learning_rate = update_learning_rate

    def forward(self, embeddings: Tensor, labels: Tensor, *args: Any, **options: Any) -> Tensor:
        loss = super().forward(embeddings, labels, *args, **options)
        if self.training and torch.is_grad_enabled() and self.num_calls > self.warmup and len(labels):
            values = self.embedding_memory
            values[: self.num_rows] = self._descended(values[: self.num_rows], embeddings.detach(), labels)
        return loss

    def _descended(self, rows: Tensor, anchors: Tensor, labels: Tensor) -> Tensor:
        rows, row_labels = rows.clone().requires_grad_(), self.label_memory[: len(rows)]
        anchors = anchors.to(rows.dtype)
        if self.miner is None:
            lists = lmu.get_all_pairs_indices(labels, row_labels)
        else:
            lists = self.miner(anchors, labels, rows.detach(), row_labels)
        # The last row of a sample is the one in memory.
        places = self.curr_batch_idx
        assert places is not None
        is_other = lists[1] != places[lists[0]]
        halves = [x[is_other] for x in (lists if len(lists) == 3 else lists[:2])]
        loss = self.loss(anchors, labels, (*halves, *lists[len(halves) :]), rows, row_labels)
        (gradient,) = torch.autograd.grad(loss, rows, allow_unused=True, materialize_grads=True)
        return normalize(rows.detach() - self.update_learning_rate * gradient)
