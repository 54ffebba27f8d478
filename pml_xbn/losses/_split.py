"""Checks of a call's input, and its parts."""

from __future__ import annotations

import torch
from torch import Tensor

from .._tensor_checks import check_integers, check_mask
from ..memory._batch import Batch
from ..pairwise import IndicesTuple
from ._validation import check_embeddings, check_indices


def split(
    embeddings: Tensor,
    labels: Tensor,
    given: IndicesTuple | None,
    mask: Tensor | None = None,
    embedding_size: int | None = None,
    dtype: torch.dtype | None = None,
    ids: Tensor | None = None,
) -> Batch:
    """Checks shapes and dtypes, and splits the input by its enqueue mask.

    Embeddings are raised to ``dtype`` where theirs is less precise.
    """
    check_embeddings(embeddings, embedding_size)
    check_integers("labels", labels, len(embeddings), "one label per embedding")
    if given is not None:
        check_indices(given)
        if mask is not None:
            raise ValueError("indices_tuple and enqueue_mask are mutually exclusive: pass one of them")
    if dtype is not None:
        embeddings = embeddings.to(torch.promote_types(embeddings.dtype, dtype))
    labels = labels.to(embeddings.device, torch.int64).contiguous()
    if ids is not None:
        check_integers("sample_ids", ids, len(embeddings), "one number per embedding, -1 where there is none")
        ids = ids.to(embeddings.device, torch.int64).clamp_min(-1).contiguous()
    anchors, anchor_labels = refs, ref_labels = embeddings, labels
    if mask is not None:
        check_mask("enqueue_mask", mask, len(embeddings))
        mask = mask.to(embeddings.device)
        anchors, anchor_labels, refs, ref_labels = (
            embeddings[~mask],
            labels[~mask],
            embeddings[mask],
            labels[mask],
        )
        ids = None if ids is None else ids[mask]
    return Batch(
        anchors,
        anchor_labels,
        refs,
        ref_labels,
        is_own=mask is None,
        given=given,
        rows=refs.detach(),
        row_labels=ref_labels,
        first_row=0,
        ids=ids,
    )
