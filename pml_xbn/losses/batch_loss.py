"""A loss without memory, of the batch of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._tensor_checks import check_rows
from ..distributed._ranks import (
    Exchange,
    is_distributed,
    reported,
    same_draws,
    with_all_anchors,
    with_all_refs,
)
from ..memory._batch import Batch, zero_loss
from ..pairwise._miners import Miner
from ..pairwise._pairs import IndicesTuple, appended, mapped
from ._input import split


class BatchLoss(nn.Module):
    """A loss and a miner of PML without a memory: what memories are compared with.

    On one process it is ``loss(embeddings, labels, miner(embeddings, labels))``. On many ranks, with
    ``gather_distributed``, it is that of a single process with the batch of all, as is the mean over ranks of
    the gradients, which ``DistributedDataParallel`` takes, of embeddings and of the loss's parameters.

    Args:
        loss: takes ``(embeddings, labels, indices_tuple)``; any loss of PML.
        miner: takes ``(embeddings, labels)``; default all pairs.
        gather_distributed: in a run of many ranks, the loss of the batch of all of them. In ``eval()`` mode
            and where gradients are disabled every rank is by itself.

    Example:
        >>> from pytorch_metric_learning.losses import ContrastiveLoss
        >>> loss_fn = BatchLoss(ContrastiveLoss())
        >>> loss_fn(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        tensor(1.4142)
    """

    def __init__(
        self, loss: nn.Module, miner: Miner | None = None, *, gather_distributed: bool = False
    ) -> None:
        super().__init__()
        self.loss = loss
        self.miner = miner
        self.gather_distributed = gather_distributed

    def forward(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: IndicesTuple | None = None
    ) -> Tensor:
        """The loss, a scalar.

        Args:
            embeddings: ``(b, d)``, any floating dtype.
            labels: ``(b,)``, integers.
            indices_tuple: pairs or triplets within the batch, added to the miner's.

        Raises:
            ValueError: input that does not fit. With ``gather_distributed`` an error on one rank, of the
                loss or the miner too, raises on all.
        """

        def own_batch() -> Batch:
            check_rows("embeddings", embeddings)
            return split(embeddings, labels, indices_tuple)

        is_alone = not (self.gather_distributed and is_distributed())
        if is_alone or not (self.training and torch.is_grad_enabled()):
            return loss_of_batch(self.loss, self.miner, own_batch(), ())
        batch, reports = reported(own_batch)
        batch = with_all_anchors(with_all_refs(batch, reports), reports)
        with Exchange(), same_draws(reports[0].seed, batch.refs.device):
            return loss_of_batch(self.loss, self.miner, batch, ())


def loss_of_batch(
    loss: nn.Module, miner: Miner | None, batch: Batch, no_refs: tuple[None, ...] = (None, None)
) -> Tensor:
    """Returns the loss of the anchors against the refs, or where these are the anchors with ``no_refs``."""
    if len(batch.anchors) == 0 or len(batch.refs) == 0:
        return zero_loss(batch)
    arguments: tuple[Any, ...] = batch.anchors, batch.anchor_labels
    refs = no_refs if batch.own is not None else (batch.refs, batch.ref_labels)
    indices = batch.user_pairs
    if miner is not None:
        indices = miner(*arguments, *refs)
        if batch.user_pairs is not None:
            batch_rows = torch.arange(len(batch.refs), device=batch.refs.device)
            indices = appended(indices, mapped(batch.user_pairs, batch_rows), batch.anchor_labels)
    value: Tensor = loss(*arguments, indices, *refs)
    return value
