"""Whether the values of a batch may be stored."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._dtypes import widest
from ..adapters.base_adapter import Refusal


def are_storable(embeddings: Tensor, dtype: torch.dtype, refusals: list[Refusal], *, skip: bool) -> bool:
    """Checks the values, in one wait for the GPU.

    Args:
        embeddings: ``(b, d)``, as the caller has passed them.
        dtype: that rows are read in.
        refusals: what there is against the labels, or the indices that came with them.
        skip: return False instead of raising an error for values that are not finite.

    Raises:
        ValueError: the first of the refusals; NaN or inf, or what is beyond the range of ``dtype``.
    """
    found = embeddings.detach().abs()
    largest = found.amax() if len(found) else found.sum()  # NaN if there is one
    refused: list[float] = []
    if refusals:
        size, *refused = torch.stack([widest(x) for x in (largest, *(flag for flag, _ in refusals))]).tolist()
    else:
        size = largest.item()
    for is_refused, (_, message) in zip(refused, refusals, strict=True):
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
    return is_within
