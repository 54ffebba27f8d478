"""One call's input."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """A call's input, split into what the loss is computed for and what is stored."""

    anchors: Tensor  # (a, d), with gradient
    anchor_labels: Tensor  # (a,)
    refs: Tensor  # (b, d), what is stored, with gradient; on many ranks that of all
    ref_labels: Tensor  # (b,)
    own: slice | None  # where the anchors are among the refs; None: they are others
    user_pairs: tuple[Tensor, ...] | None = None  # pairs or triplets of anchors and refs[own]
    ids: Tensor | None = None  # samples of the refs, (b,); None: of no ref
    is_stored: bool = True


def zero_loss(batch: Batch) -> Tensor:
    """What PML's losses return without pairs: zero, with a zero gradient."""
    return (batch.anchors * 0).sum()
