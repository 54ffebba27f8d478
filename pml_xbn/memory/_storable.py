"""Whether the values of a batch may be stored."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._dtypes import at_least_float32
from ..adapters.base_adapter import Refusal


@torch.no_grad()
def are_storable(
    embeddings: Tensor, dtype: torch.dtype, refusals: list[Refusal], is_due: Tensor | None, *, skip: bool
) -> tuple[bool, bool]:
    """Returns whether a batch may be stored, and what ``is_due`` holds, in one wait for the GPU.

    Args:
        embeddings: ``(b, d)``, as the caller has passed them.
        dtype: that rows are read in.
        refusals: what there is against the labels, or the indices that came with them.
        is_due: whether the rows that are stored are to be stored anew, 0-d bool; None: they are not.
        skip: return False instead of raising an error for values that are not finite.

    Raises:
        ValueError: the first of the refusals; NaN or inf, or what is beyond the range of ``dtype``.
    """
    found = embeddings.abs()
    largest = at_least_float32(found.amax() if len(found) else found.sum())  # NaN if there is one
    flags = [flag for flag, _ in refusals] + ([] if is_due is None else [is_due])
    size, *known = torch.stack([largest, *(flag.to(largest) for flag in flags)]).tolist()
    refused = known[: len(refusals)]
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
    return is_within, is_due is not None and bool(known[-1])
