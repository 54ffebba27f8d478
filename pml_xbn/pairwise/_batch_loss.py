"""The loss of a batch by itself, without a memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.reducers import MultipleReducers
from torch import Tensor, nn

from .._tracing import looks_again
from ..memory._batch import Batch, zero_loss
from ._fused_losses import REDUCERS
from ._miners import Miner
from ._pairs import appended, mapped


def loss_of_batch(
    loss: nn.Module,
    miner: Miner | None,
    batch: Batch,
    no_refs: tuple[None, ...] = (None, None),
    watchers: Sequence[Callable[..., object]] = (),
) -> Tensor:
    """Returns the loss of the anchors against the refs.

    Args:
        loss: of the user.
        miner: chooses among the pairs; None: all.
        batch: anchors and refs.
        no_refs: what the loss gets for refs where these are the anchors: two times None, as PML's losses are
            called without refs, or nothing for a loss of the user's that takes embeddings, labels and pairs.
        watchers: called with the arguments of the loss, before it.
    """
    if len(batch.anchors) == 0 or len(batch.refs) == 0:
        return loss_without_pairs(loss, batch)
    arguments: tuple[Any, ...] = batch.anchors, batch.anchor_labels
    refs = no_refs if batch.own is not None else (batch.refs, batch.ref_labels)
    indices = batch.user_pairs
    if miner is not None:
        with looks_again():
            indices = miner(*arguments, *refs)
        if batch.user_pairs is not None:
            batch_rows = torch.arange(len(batch.refs), device=batch.refs.device)
            indices = appended(indices, mapped(batch.user_pairs, batch_rows), batch.anchor_labels)
    for watch in watchers:
        watch(*arguments, indices, *refs)
    with looks_again():
        value: Tensor = loss(*arguments, indices, *refs)
    return value


def loss_without_pairs(loss: nn.Module, batch: Batch) -> Tensor:
    """Returns what a loss of PML's returns without pairs: zero, or what its reducer makes of no terms.

    PML's own reducers make zero of it. ``DoNothingReducer`` and some of a user's return a dictionary.
    """
    if not isinstance(loss, BaseMetricLossFunction) or type(loss.reducer) in (*REDUCERS, MultipleReducers):
        return zero_loss(batch)
    value: Tensor = loss.reducer(loss.zero_losses(), batch.anchors, batch.anchor_labels)
    return value
