"""What PML's distances measure between anchors and rows, read off one matrix of products."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from pytorch_metric_learning.distances import (
    BaseDistance,
    CosineSimilarity,
    DotProductSimilarity,
    LpDistance,
    SNRDistance,
)
from torch import Tensor
from torch.nn.functional import normalize, threshold

from ..memory._rows import Rows
from ._plain import is_plain

_SMALLEST_NORM = 1e-12  # what torch.nn.functional.normalize divides by at least
_ROUNDING = 16  # a squared distance of that many eps is that of equal vectors


class Distances:
    """Distances of anchors ``(a, d)`` to rows.

    Each of PML's distances would scale a copy of all rows to unit length, and multiply it with the anchors.
    Here the rows are read once, multiplied as they are, and the products divided by their lengths.
    """

    def __init__(self, anchors: Tensor, rows: Rows) -> None:
        self.anchors, self.rows = anchors, rows
        self._is_differentiated = torch.is_grad_enabled()
        self._products: dict[bool, tuple[Tensor, Tensor, Tensor]] = {}

    def measured(self, distance: BaseDistance) -> Tensor:
        """Returns what the distance measures, ``(a, n)``, with gradient; not to be written to."""
        if not is_read_off_products(distance):
            mat: Tensor = distance(self.anchors, self.row_tensor)
            return mat
        if isinstance(distance, LpDistance):
            mat = self._euclidean()
        elif isinstance(distance, SNRDistance):
            mat = self._noise_to_signal(distance.normalize_embeddings)
        else:
            mat, *_ = self._multiplied(distance.normalize_embeddings)
        return mat if distance.power == 1 else mat**distance.power

    @cached_property
    def row_tensor(self) -> Tensor:
        """The rows, ``(n, d)``, for PML's own code."""
        return self.rows.read(self.anchors.dtype)

    def _multiplied(self, is_normalized: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Returns products with rows or cosines ``(a, n)``, and lengths: ``(n,)`` of rows, ``(a, 1)``."""
        if is_normalized not in self._products:
            # A miner may ask first, which takes no gradients; the loss asks next.
            with torch.set_grad_enabled(self._is_differentiated):
                products = _Products.apply(self.anchors, self.rows, is_normalized, is_normalized)
            self._products[is_normalized] = products
        return self._products[is_normalized]

    def _euclidean(self) -> Tensor:
        """Returns |v - r| of unit vectors, whose square is 2 - 2 v·r."""
        cosines, lengths, norms = self._multiplied(is_normalized=True)
        # The squared length after scaling is 1, or 0 for a vector of zeros.
        squared = torch.add(lengths > _SMALLEST_NORM, cosines, alpha=-2)
        squared += norms > _SMALLEST_NORM
        equal = _ROUNDING * torch.finfo(squared.dtype).eps
        if not squared.requires_grad:
            return threshold(squared, equal, 0.0, inplace=True).sqrt_()
        # The root has no gradient at 0.
        return squared.clamp_min(equal).sqrt().masked_fill(squared <= equal, 0.0)

    def _noise_to_signal(self, is_normalized: bool) -> Tensor:
        """Returns the variance of the difference over that of the anchor."""
        vectors = normalize(self.anchors) if is_normalized else self.anchors
        vectors = vectors - vectors.mean(dim=1, keepdim=True)  # so that means of rows make no difference
        products, lengths, _ = _Products.apply(vectors, self.rows, False, is_normalized)
        row_signal = torch.empty_like(lengths)
        for places, part in self.rows.parts(vectors.dtype):
            row_signal[places] = (part - part.mean(dim=1, keepdim=True)).square().sum(dim=1)
        signal = vectors.square().sum(dim=1, keepdim=True)
        noise = signal + row_signal / lengths.square() - 2 * products
        is_rounding = noise < signal * _ROUNDING * torch.finfo(noise.dtype).eps
        mat: Tensor = (noise / signal).masked_fill(is_rounding, 0.0)
        return mat


def is_read_off_products(distance: Any) -> bool:
    """Returns whether the distance is one of PML's, unchanged, that needs products with the rows alone."""
    if type(distance) is LpDistance and not distance.normalize_embeddings:
        return False
    kinds = (CosineSimilarity, DotProductSimilarity, LpDistance, SNRDistance)
    return type(distance) in kinds and distance.p == 2 and is_plain(distance)


class _Products(torch.autograd.Function):
    """Products of vectors ``(a, d)`` with rows, either of them scaled to unit length or not.

    Rows take no gradient.

    Returns:
        The matrix ``(a, n)``, and what rows and vectors were divided by, ``(n,)`` and ``(a, 1)``; None: by 1.
    """

    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, rows: Rows, scales_vectors: bool, scales_rows: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        norms = None
        if scales_vectors:
            norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp_min_(_SMALLEST_NORM)
            vectors = vectors / norms
        mat = vectors.new_empty(len(vectors), rows.num_rows)
        lengths = vectors.new_ones(rows.num_rows)
        for places, part in rows.parts(vectors.dtype):
            torch.mm(vectors, part.t(), out=mat[:, places])
            if scales_rows:
                torch.linalg.vector_norm(part, dim=1, out=lengths[places])
        if scales_rows:
            mat /= lengths.clamp_min_(_SMALLEST_NORM)
        ctx.rows, ctx.scales_rows = rows, scales_rows
        ctx.save_for_backward(vectors, norms, lengths)
        ctx.mark_non_differentiable(lengths, *([] if norms is None else [norms]))
        ctx.set_materialize_grads(False)
        return mat, lengths, norms

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, mat_gradient: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        vectors, norms, lengths = ctx.saved_tensors
        if (
            ctx.scales_rows
        ):  # a row without length has no direction, and may be far from zero where it is stored
            lengths = lengths.masked_fill(lengths <= _SMALLEST_NORM, torch.inf)
        gradient = ctx.rows.weighted_sum(mat_gradient, lengths if ctx.scales_rows else None)
        if norms is not None:  # a change of length changes nothing
            along = (gradient * vectors).sum(dim=1, keepdim=True)
            gradient = torch.addcmul(gradient, vectors, along, value=-1).div_(norms)
        return gradient, None, None, None
