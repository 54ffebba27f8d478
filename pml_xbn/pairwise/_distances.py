"""What PML's distances measure between anchors and rows, read off one matrix of products."""

from __future__ import annotations

from dataclasses import dataclass, field
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
from ._finite import zero_if_finite

DISTANCES = (CosineSimilarity, DotProductSimilarity, LpDistance, SNRDistance)

_SMALLEST_NORM = 1e-12  # what torch.nn.functional.normalize divides by at least
_ROUNDING = 16  # a squared distance of that many eps is that of equal vectors


@dataclass
class Distances:
    """Distances of anchors ``(a, d)`` to rows.

    Each of PML's distances would scale a copy of all rows to unit length, and multiply it with the anchors.
    Here the rows are read once, multiplied as they are, and the products divided by their lengths.
    """

    anchors: Tensor
    rows: Rows
    _products: dict[bool, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)
    _zero: Tensor | None = field(default=None, init=False)  # see zero_if_finite

    def measured(self, distance: BaseDistance) -> Tensor:
        """Returns what a plain distance measures, ``(a, n)``, with gradient; not to be written to."""
        is_of_pml = type(distance) in DISTANCES and distance.p == 2
        is_of_lengths = type(distance) is LpDistance and not distance.normalize_embeddings
        if is_of_lengths or not is_of_pml or distance.collect_stats:
            mat: Tensor = distance(self.anchors, self.rows.read(self.anchors.dtype))
            return mat
        if isinstance(distance, LpDistance):
            mat = self._euclidean()
        elif isinstance(distance, SNRDistance):
            mat = self._noise_to_signal(distance.normalize_embeddings)
        else:
            mat, _ = self._multiplied(distance.normalize_embeddings)
        return mat if distance.power == 1 else mat**distance.power

    def zero_if_finite(self) -> Tensor:
        """Returns zero, a 0-d tensor, and NaN if an anchor or a row holds NaN or inf."""
        if self._zero is None:
            self._zero = zero_if_finite(self.anchors)
            for _, part in self.rows.parts(self.anchors.dtype):
                self._zero += zero_if_finite(part)
        return self._zero

    def _product(self, vectors: Tensor, is_normalized: bool) -> tuple[Tensor, Tensor]:
        mat, factors = _Products.apply(vectors, self.rows, is_normalized)
        if self._zero is None:
            # A vector that is not finite has no finite product, so one row and one column tell of all.
            self._zero = zero_if_finite(mat[:1], mat[:, :1])
        return mat, factors

    def _multiplied(self, is_normalized: bool) -> tuple[Tensor, Tensor]:
        """Returns products with rows or cosines, ``(a, n)``, and what the rows were multiplied by."""
        if is_normalized not in self._products:
            with torch.enable_grad():  # a miner may ask first, which takes no gradients; the loss asks next
                self._products[is_normalized] = self._product(self.anchors, is_normalized)
        return self._products[is_normalized]

    def _euclidean(self) -> Tensor:
        """Returns |v - r| of unit vectors, whose square is 2 - 2 v·r."""
        cosines, factors = self._multiplied(is_normalized=True)
        # The squared length after scaling is 1, or 0 for a vector of zeros.
        squared = torch.add(factors > 0, cosines, alpha=-2)
        squared += self.anchors.any(dim=1, keepdim=True)
        equal = _ROUNDING * torch.finfo(squared.dtype).eps
        if not squared.requires_grad:
            return threshold(squared, equal, 0.0, inplace=True).sqrt_()
        # The root has no gradient at 0.
        return squared.clamp_min(equal).sqrt().masked_fill(squared <= equal, 0.0)

    def _noise_to_signal(self, is_normalized: bool) -> Tensor:
        """Returns the variance of the difference over that of the anchor."""
        vectors = normalize(self.anchors) if is_normalized else self.anchors
        vectors = vectors - vectors.mean(dim=1, keepdim=True)  # so that means of rows make no difference
        products, _ = self._product(vectors, is_normalized=False)
        lengths = products.new_ones(self.rows.num_rows_here)
        row_signal = torch.empty_like(lengths)
        for places, part in self.rows.parts(vectors.dtype):
            row_signal[places] = (part - part.mean(dim=1, keepdim=True)).square().sum(dim=1)
            if is_normalized:
                torch.linalg.vector_norm(part, dim=1, out=lengths[places])
        if is_normalized:
            lengths.masked_fill_(lengths <= self.rows.least_length(lengths.dtype), torch.inf)
        signal = vectors.square().sum(dim=1, keepdim=True)
        noise = signal + row_signal / lengths.square() - 2 * products / lengths
        is_rounding = noise < signal * _ROUNDING * torch.finfo(noise.dtype).eps
        mat: Tensor = (noise / signal).masked_fill(is_rounding, 0.0)
        return mat


class _Products(torch.autograd.Function):
    """Products ``(a, n)`` of vectors ``(a, d)`` with rows, or cosines, and factors of the rows ``(n,)``."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, rows: Rows, is_normalized: bool) -> tuple[Tensor, Tensor]:
        norms = None
        if is_normalized:
            norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp_min_(_SMALLEST_NORM)
            vectors = vectors / norms
        mat, factors = (
            vectors.new_empty(len(vectors), rows.num_rows_here),
            vectors.new_ones(rows.num_rows_here),
        )
        for places, part in rows.parts(vectors.dtype):
            torch.mm(vectors, part.t(), out=mat[:, places])
            if is_normalized:
                torch.linalg.vector_norm(part, dim=1, out=factors[places])
        if is_normalized:  # a row of zeros has no direction, and stays zero
            factors.masked_fill_(factors <= rows.least_length(factors.dtype), torch.inf).reciprocal_()
            mat *= factors
        ctx.rows, ctx.is_normalized = rows, is_normalized
        ctx.save_for_backward(vectors, norms, factors)
        ctx.mark_non_differentiable(factors)
        ctx.set_materialize_grads(False)
        return mat, factors

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, mat_gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        vectors, norms, factors = ctx.saved_tensors
        if not ctx.is_normalized:
            return ctx.rows.weighted_sum(mat_gradient), None, None
        gradient = ctx.rows.weighted_sum(mat_gradient, factors)
        # A change of length changes nothing.
        along = (gradient * vectors).sum(dim=1, keepdim=True)
        return torch.addcmul(gradient, vectors, along, value=-1).div_(norms), None, None
