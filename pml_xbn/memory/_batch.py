"""What a call brings: what the loss is computed for, and what is stored."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import check_indices, check_integers, check_mask, plain


class Batch(NamedTuple):
    """A call's input, split into what the loss is computed for and what is stored."""

    anchors: Tensor  # (a, d), with gradient
    anchor_labels: Tensor  # (a,)
    refs: Tensor  # (b, d), what is stored, with gradient; on many ranks the refs of all ranks
    ref_labels: Tensor  # (b,)
    own: slice | None  # where the anchors are among the refs; None: they are others
    user_pairs: tuple[Tensor, ...] | None = None  # pairs or triplets of anchors and refs[own]
    ids: Tensor | None = None  # samples of the refs, (b,); None: of no ref
    is_stored: bool = True  # False: the call stores nothing, or leaves this batch out
    is_finite: bool = True  # False: it is known, on many ranks of any rank's, to hold NaN or inf
    # Whether numbers and labels are accepted, 0-d bool on the device; None: the host knows, or nobody asks.
    is_accepted: Tensor | None = None


def split(
    embeddings: Tensor,
    labels: Tensor,
    user_pairs: tuple[Tensor, ...] | None,
    mask: Tensor | None = None,
    ids: Tensor | None = None,
) -> Batch:
    """Returns a call's input, split by its enqueue mask, once shapes and dtypes of all but embeddings fit."""
    size, device = embeddings.shape[0], embeddings.device
    check_integers("labels", labels, size, "one label per embedding")
    labels = plain(labels).to(device, torch.int64).contiguous()
    if user_pairs is not None:
        check_indices(user_pairs, size)
    if ids is not None:
        check_integers("sample_ids", ids, size, "one number per embedding, -1 where there is none")
        ids = plain(ids).to(device, torch.int64).clamp_min(-1).contiguous()
    if mask is None:
        return Batch(embeddings, labels, embeddings, labels, slice(0, size), user_pairs, ids)
    if user_pairs is not None:
        raise ValueError("indices_tuple and enqueue_mask are mutually exclusive: pass one of them")
    check_mask("enqueue_mask", mask, size)
    mask = plain(mask)
    refs, others = (x.nonzero().squeeze(1).to(device) for x in (mask, ~mask))
    ids = None if ids is None else ids[refs]
    return Batch(embeddings[others], labels[others], embeddings[refs], labels[refs], None, None, ids)


def zero_loss(batch: Batch) -> Tensor:
    """What PML's losses return without pairs: zero, with a zero gradient."""
    return (batch.anchors * 0).sum()
