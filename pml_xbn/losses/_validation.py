"""Checks of what the user passes; every error names the value and the remedy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._tensor_checks import INTEGERS
from ..adapters.base_adapter import Refusal


def check_embeddings(embeddings: Tensor, embedding_size: int | None) -> None:
    if not isinstance(embeddings, torch.Tensor):
        raise TypeError(f"embeddings is a {type(embeddings).__name__}: pass a tensor")
    if embedding_size is None and embeddings.ndim != 2:
        raise ValueError(f"embeddings has shape {tuple(embeddings.shape)}: pass (batch_size, embedding_size)")
    if embedding_size is not None and (embeddings.ndim != 2 or embeddings.shape[1] != embedding_size):
        raise ValueError(
            f"embeddings has shape {tuple(embeddings.shape)}: pass (batch_size, {embedding_size}), or "
            "build the loss with another embedding_size"
        )
    if not embeddings.is_floating_point():
        raise ValueError(f"embeddings has dtype {embeddings.dtype}: pass a floating dtype")


def check_classes(labels: Tensor, num_classes: int) -> None:
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        raise ValueError(
            f"labels {labels[outside].unique().tolist()} are no class of num_classes={num_classes}: pass "
            f"labels from 0 to {num_classes - 1}"
        )


def check_indices(indices_tuple: tuple[Tensor, ...]) -> None:
    if len(indices_tuple) not in (3, 4):
        raise ValueError(
            f"indices_tuple has {len(indices_tuple)} tensors: pass 3 (anchors, positives, negatives) "
            "or 4 (anchors, positives, anchors, negatives)"
        )
    for numbers in indices_tuple:
        if not isinstance(numbers, Tensor):
            raise TypeError(f"indices_tuple holds a {type(numbers).__name__}: pass tensors")
        if numbers.ndim != 1 or numbers.dtype not in INTEGERS:
            raise ValueError(
                f"indices_tuple holds a tensor of shape {tuple(numbers.shape)} and dtype {numbers.dtype}: "
                "pass numbers of the batch's rows, of one dimension and torch.int64"
            )
    lengths = [len(numbers) for numbers in indices_tuple]
    halves = (lengths,) if len(lengths) == 3 else (lengths[:2], lengths[2:])
    if any(len(set(half)) > 1 for half in halves):
        raise ValueError(
            f"indices_tuple has tensors of lengths {lengths}: pass an anchor for every positive and negative"
        )


def refused_indices(indices_tuple: tuple[Tensor, ...], batch_size: int, device: torch.device) -> Refusal:
    """Numbers of rows that the batch does not have."""
    numbers = torch.cat([x.to(device) for x in indices_tuple])
    is_outside = (numbers < 0) | (numbers >= batch_size)
    return (
        is_outside.any(),
        lambda: (
            f"indices_tuple has numbers {numbers[is_outside].unique().tolist()} for a batch of {batch_size}: "
            f"pass numbers from 0 to {batch_size - 1}"
        ),
    )


def check_num_rows(num_rows: int, memory_size: int) -> None:
    if num_rows > memory_size:
        raise ValueError(
            f"{num_rows} rows to enqueue do not fit memory_size={memory_size}: pass smaller batches or "
            "build a larger memory"
        )


def check_scalar(value: Any, loss: nn.Module) -> None:
    if not (isinstance(value, Tensor) and value.numel() == 1):
        found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TypeError(
            f"{type(loss).__name__} returned {found}: give it a reducer that returns a scalar, such as "
            "MeanReducer"
        )
