"""The loss of a batch that is not stored."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from ..memory._batch import Batch, zero_loss
from ..memory._rows import Rows
from ..pairwise import Comparison, Miner, appended, chosen_pairs, loss_against, mapped
from .batch_loss import loss_of_batch


def loss_against_stored(
    loss: nn.Module, miner: Miner | None, batch: Batch, rows: Rows, row_labels: Tensor
) -> Tensor:
    """The loss of the anchors against a memory as it is."""
    given = batch.given
    if len(batch.anchors) == 0 or len(rows) == 0:
        return zero_loss(batch) if given is None else loss_of_batch(loss, miner, batch)
    compared = Comparison(loss, miner, batch.anchors, batch.anchor_labels, rows, row_labels)
    if given is None:
        return loss_against(compared)
    # Not stored, so the given pairs find their rows of the batch behind those of the memory.
    lists = chosen_pairs(compared)
    batch_rows = torch.arange(len(rows), len(rows) + len(batch.refs), device=row_labels.device)
    values = torch.cat([rows.read(batch.refs.dtype), batch.refs.detach()])
    lists = appended(lists, mapped(given, batch_rows), batch.anchor_labels)
    rows = Rows.of(values, len(values), values.dtype)
    labels = torch.cat([row_labels, batch.ref_labels])
    return loss_against(compared._replace(miner=lambda *_: lists, rows=rows, row_labels=labels))


def warn_of_eval(anchors: Tensor) -> None:
    """Warns of a loss that is wanted for training while an empty memory is in ``eval()`` mode."""
    if torch.is_grad_enabled() and anchors.requires_grad:
        warnings.warn(
            "the memory is empty and in eval() mode, in which it stores nothing, so that the loss stays "
            "0; to train, call train() on the loss after eval() on a module that holds it",
            stacklevel=3,
        )
