"""One matrix of cosines for the loss and the miner, without a copy of the memory at unit length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity, LpDistance
from torch import Tensor

_PAIRS_AT_ONCE = 2**14
_SMALLEST_NORM = 1e-12  # what torch.nn.functional.normalize divides by at least


@contextmanager
def shared_cosines(anchors: Tensor, rows: Tensor, *distances: BaseDistance) -> Iterator[None]:
    """Within it, these distances between anchors ``(a, d)`` and rows ``(n, d)`` are read off one matrix.

    Each of PML's distances would scale a copy of all rows to unit length, and multiply it with the
    anchors. Here the rows are multiplied as they are, once, and the products divided by their lengths.
    Nothing happens unless all distances are cosines or Euclidean distances at unit length.
    """
    if not all(_is_of_cosines(distance) for distance in distances):
        yield
        return
    cosines = _cosines(anchors, rows)
    for distance in distances:
        distance.forward = _reader(distance, cosines, anchors, rows)
    try:
        yield
    finally:
        for distance in distances:
            distance.__dict__.pop("forward", None)


class _Cosines(NamedTuple):
    mat: Tensor  # (a, n)
    # Squared lengths after scaling: 1, but 0 for a vector of zeros.
    anchors: Tensor  # (a, 1)
    rows: Tensor  # (n,)
    are_equal: Callable[[Tensor], Tensor]  # of pairs that a mask allows, those of equal vectors


def _cosines(anchors: Tensor, rows: Tensor) -> _Cosines:
    # In half precision autocast would copy the rows, and long rows would overflow.
    with torch.autocast(anchors.device.type, enabled=False):
        anchor_norms = torch.linalg.vector_norm(anchors, dim=1, keepdim=True)
        row_norms = torch.linalg.vector_norm(rows, dim=1)
        mat = (anchors / anchor_norms.clamp_min(_SMALLEST_NORM)) @ rows.t()
        mat /= row_norms.clamp_min(_SMALLEST_NORM)
    of_anchors, of_rows = ((norms > _SMALLEST_NORM).to(mat) for norms in (anchor_norms, row_norms))
    return _Cosines(mat, of_anchors, of_rows, partial(_equal_pairs, anchors.detach(), rows.detach()))


def _equal_pairs(anchors: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
    """Where an anchor and a row are the same vector, ``(a, n)`` bool, among the pairs that are allowed."""
    # One coordinate tells nearly all pairs apart, so that few need a look at all.
    equal = allowed & (anchors[:, :1] == rows[:, 0])
    for pairs in equal.nonzero().split(_PAIRS_AT_ONCE):
        of_anchors, of_rows = pairs.unbind(dim=1)
        equal[of_anchors, of_rows] = (anchors[of_anchors] == rows[of_rows]).all(dim=1)
    return equal


def _euclidean(cosines: _Cosines) -> Tensor:
    squared = -2 * cosines.mat
    squared += cosines.rows
    squared += cosines.anchors
    # Rounding hides which of the closest vectors are equal, and takes some below zero, where the root has no
    # gradient.
    eps = torch.finfo(squared.dtype).eps
    equal = cosines.are_equal(squared.detach() < 16 * eps)
    distances: Tensor = squared.clamp_min_(eps).masked_fill_(equal, 1.0).sqrt_()
    return distances.masked_fill(equal, 0.0)


_FROM_COSINES: dict[type[BaseDistance], Callable[[_Cosines], Tensor]] = {
    CosineSimilarity: lambda cosines: cosines.mat,
    LpDistance: _euclidean,
}


def _is_of_cosines(distance: BaseDistance) -> bool:
    return (
        type(distance) in _FROM_COSINES
        and distance.normalize_embeddings
        and distance.p == 2
        and not distance.collect_stats
    )


def _reader(
    distance: BaseDistance, cosines: _Cosines, anchors: Tensor, rows: Tensor
) -> Callable[..., Tensor]:
    def forward(query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        if query_emb is not anchors or ref_emb is not rows:  # a loss that measures something else besides
            other: Tensor = type(distance).forward(distance, query_emb, ref_emb)
            return other
        mat = _FROM_COSINES[type(distance)](cosines)
        return mat if distance.power == 1 else mat**distance.power

    return forward
