"""One call's input: its checks, every error of which names the value and the remedy, and its parts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._dtypes import at_least_float32
from .._tensor_checks import INTEGERS, check_integers, check_mask
from ..adapters.base_adapter import Refusal
from ..memory._batch import Batch
from ..pairwise import IndicesTuple


def split(
    embeddings: Tensor,
    labels: Tensor,
    user_pairs: IndicesTuple | None,
    mask: Tensor | None = None,
    ids: Tensor | None = None,
) -> Batch:
    """Returns a call's input, split by its enqueue mask, once shapes and dtypes of all but embeddings fit."""
    size, device = len(embeddings), embeddings.device
    check_integers("labels", labels, size, "one label per embedding")
    if user_pairs is not None:
        check_indices(user_pairs)
        if mask is not None:
            raise ValueError("indices_tuple and enqueue_mask are mutually exclusive: pass one of them")
    labels = labels.to(device, torch.int64).contiguous()
    if ids is not None:
        check_integers("sample_ids", ids, size, "one number per embedding, -1 where there is none")
        ids = ids.to(device, torch.int64).clamp_min(-1).contiguous()
    anchors, anchor_labels = embeddings, labels
    if mask is not None:
        check_mask("enqueue_mask", mask, size)
        mask = mask.to(device)
        anchors, anchor_labels = embeddings[~mask], labels[~mask]
        embeddings, labels, ids = embeddings[mask], labels[mask], None if ids is None else ids[mask]
    rows, is_own = embeddings.detach(), mask is None
    return Batch(anchors, anchor_labels, embeddings, labels, is_own, user_pairs, rows, labels, 0, ids)


@torch.no_grad()
def are_storable(
    embeddings: Tensor, dtype: torch.dtype, refusals: list[Refusal], is_due: Tensor | None, *, skip: bool
) -> tuple[bool, bool]:
    """Returns whether a batch may be stored, and what ``is_due`` holds, 0-d bool, in one wait for the GPU.

    ``skip`` returns False where NaN, inf, or what is beyond the range of the rows' ``dtype`` would raise.
    """
    found = embeddings.abs()
    largest = at_least_float32(found.amax() if len(found) else found.sum())  # NaN if there is one
    flags = [flag.to(largest) for flag, _ in refusals]
    if is_due is not None:
        flags.append(is_due.to(largest))
    size, *known = torch.stack([largest, *flags]).tolist()
    for is_refused, (_, message) in zip(known, refusals, strict=False):
        if is_refused:
            raise ValueError(message())
    if not (math.isfinite(size) or skip):
        bad_rows = (~torch.isfinite(embeddings)).any(dim=1).nonzero().flatten().tolist()
        raise ValueError(
            f"embeddings has NaN or inf in rows {bad_rows}: lower the learning rate or mend the data, "
            "or pass nonfinite='skip' to leave such batches out of the memory"
        )
    # A stored row may be as many times as far out as there are rows, so there is to be some room.
    is_within: bool = size <= torch.finfo(dtype).max * 2.0**-16
    if not (is_within or skip):
        raise ValueError(
            f"embeddings holds {size:.3g}, beyond the range of {dtype}: pass "
            "smaller ones, or build the memory with memory_dtype=torch.float64"
        )
    return is_within, is_due is not None and bool(known[-1])


def check_embeddings(embeddings: Tensor, embedding_size: int) -> None:
    if not isinstance(embeddings, torch.Tensor):
        raise TypeError(f"embeddings is a {type(embeddings).__name__}: pass a tensor")
    if embeddings.ndim != 2 or embeddings.shape[1] != embedding_size:
        raise ValueError(
            f"embeddings has shape {tuple(embeddings.shape)}: pass (batch_size, {embedding_size}), or "
            "build the loss with another embedding_size"
        )
    if not embeddings.is_floating_point():
        raise ValueError(f"embeddings has dtype {embeddings.dtype}: pass a floating dtype")


def check_indices(indices_tuple: tuple[Tensor, ...]) -> None:
    if len(indices_tuple) not in (3, 4):
        raise ValueError(
            f"indices_tuple has {len(indices_tuple)} tensors: pass 3 (anchors, positives, negatives) "
            "or 4 (anchors, positives, anchors, negatives)"
        )
    for indices in indices_tuple:
        if not isinstance(indices, Tensor):
            raise TypeError(f"indices_tuple holds a {type(indices).__name__}: pass tensors")
        if indices.ndim != 1 or indices.dtype not in INTEGERS:
            raise ValueError(
                f"indices_tuple holds a tensor of shape {tuple(indices.shape)} and dtype {indices.dtype}: "
                "pass numbers of the batch's rows, of one dimension and torch.int64"
            )
    lengths = [len(indices) for indices in indices_tuple]
    halves = (lengths,) if len(lengths) == 3 else (lengths[:2], lengths[2:])
    if any(len(set(half)) > 1 for half in halves):
        raise ValueError(
            f"indices_tuple has tensors of lengths {lengths}: pass an anchor for every positive and negative"
        )


def refused_indices(indices_tuple: tuple[Tensor, ...], batch_size: int, device: torch.device) -> Refusal:
    """Numbers of rows that the batch does not have."""
    indices = torch.cat([x.to(device) for x in indices_tuple])
    is_outside = (indices < 0) | (indices >= batch_size)
    return (
        is_outside.any(),
        lambda: (
            f"indices_tuple has numbers {indices[is_outside].unique().tolist()} for a batch of {batch_size}: "
            f"pass numbers from 0 to {batch_size - 1}"
        ),
    )


def check_num_rows(num_rows: int, memory_size: int) -> None:
    if num_rows > memory_size:
        raise ValueError(
            f"{num_rows} rows to enqueue do not fit memory_size={memory_size}: pass smaller batches or "
            "build a larger memory"
        )
