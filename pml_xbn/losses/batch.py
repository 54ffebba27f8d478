"""One call's input, and the memory it may become part of."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import ranks
from .validation import check_embeddings, check_labels, check_mask


class Batch(NamedTuple):
    """A call's input, split into what the loss is computed for and what is stored."""

    anchors: Tensor  # (a, d), with gradient
    anchor_labels: Tensor  # (a,)
    refs: Tensor  # (b, d), what this rank stores, with gradient
    ref_labels: Tensor  # (b,)
    is_own: bool  # the anchors are the refs
    rows: Tensor  # (g, d), what all ranks store; on one rank the refs, detached
    row_labels: Tensor  # (g,)
    first_row: int  # where this rank's refs begin among the rows
    weight: float  # of this rank's loss in the mean over ranks

    def own(self, batch_rows: Tensor) -> Tensor:
        """Of the places ``(g,)`` of all ranks' rows, those of this rank's, ``(b,)``."""
        return batch_rows[self.first_row : self.first_row + len(self.refs)]


class Memory(NamedTuple):
    """Contents that may become the memory's, once the loss has been computed with them."""

    embeddings: Tensor  # (memory_size, d)
    labels: Tensor  # (memory_size,)
    num_rows: int
    batch_rows: Tensor  # (g,), where the batch stands


def split(
    embeddings: Tensor, labels: Tensor, mask: Tensor | None, embedding_size: int, dtype: torch.dtype
) -> Batch:
    """Checks shapes and dtypes, and splits the input by its enqueue mask.

    Embeddings are raised to ``dtype`` where theirs is less precise.
    """
    check_embeddings(embeddings, embedding_size)
    check_labels(labels, len(embeddings))
    embeddings = embeddings.to(torch.promote_types(embeddings.dtype, dtype))
    labels = labels.to(embeddings.device, torch.int64).contiguous()
    anchors, anchor_labels = refs, ref_labels = embeddings, labels
    if mask is not None:
        check_mask(mask, len(embeddings))
        mask = mask.to(embeddings.device)
        anchors, anchor_labels, refs, ref_labels = (
            embeddings[~mask],
            labels[~mask],
            embeddings[mask],
            labels[mask],
        )
    return Batch(
        anchors,
        anchor_labels,
        refs,
        ref_labels,
        is_own=mask is None,
        rows=refs.detach().to(dtype),
        row_labels=ref_labels,
        first_row=0,
        weight=1.0,
    )


def gathered(batch: Batch, ref_sizes: list[int], anchor_sizes: list[int]) -> Batch:
    """The batch with the rows of all ranks, given what every rank brings."""
    before = sum(ref_sizes[: torch.distributed.get_rank()])
    # The mean over ranks of their mean losses, so weighted, is the mean over all anchors.
    weight = len(batch.anchors) * len(anchor_sizes) / max(sum(anchor_sizes), 1)
    return batch._replace(
        rows=ranks.gather_rows(batch.rows, ref_sizes),
        row_labels=ranks.gather_rows(batch.row_labels, ref_sizes),
        first_row=before,
        weight=weight,
    )
