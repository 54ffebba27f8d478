"""One call's input."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """A call's input, split into what the loss is computed for and what is stored."""

    anchors: Tensor  # (a, d), with gradient
    anchor_labels: Tensor  # (a,)
    refs: Tensor  # (b, d), what this rank stores, with gradient
    ref_labels: Tensor  # (b,)
    is_own: bool  # the anchors are the refs
    user_pairs: tuple[Tensor, ...] | None  # pairs or triplets, whose positives and negatives number refs
    rows: Tensor  # (g, d), what all ranks store; on one rank the refs, detached
    row_labels: Tensor  # (g,)
    first_row: int  # where this rank's refs begin among the rows
    ids: Tensor | None = None  # samples of the rows, (g,); None: of no row, on no rank


def zero_loss(batch: Batch) -> Tensor:
    """What PML's losses return without pairs: zero, with a zero gradient."""
    return (batch.anchors * 0).sum()
