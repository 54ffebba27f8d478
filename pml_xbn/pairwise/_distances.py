"""What PML's distances measure between anchors and rows, from one matrix of products, and its derivative."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from pytorch_metric_learning.distances import (
    BaseDistance,
    CosineSimilarity,
    DotProductSimilarity,
    LpDistance,
    SNRDistance,
)
from torch import Tensor
from torch.nn.functional import threshold

from .._arithmetic import zero_if_finite
from .._tracing import computed_once, is_in_compiled_step
from ..memory._rows import Rows

DISTANCES = (CosineSimilarity, DotProductSimilarity, LpDistance, SNRDistance)

_SMALLEST_NORM = 1e-12  # what torch.nn.functional.normalize divides by at least
_ROUNDING = 16  # a squared distance of that many eps is that of equal vectors


class _Products(NamedTuple):
    mat: Tensor  # (a, n), products or cosines
    factors: Tensor | None  # (n,), by which rows were multiplied; None: products


class _NoiseToSignal(NamedTuple):
    mat: Tensor  # (a, n)
    vectors: Tensor  # (a, d), anchors without their mean
    signal: Tensor  # (a, 1), their squared length
    factors: Tensor | None  # (n,), by which rows were multiplied; None: by none


@dataclass
class Distances:
    """Distances of anchors to rows.

    Each of PML's distances would scale a copy of all rows to unit length, and multiply it with the anchors.
    Here the rows are read once, multiplied as they are, and the products divided by their lengths.

    A loss takes ``measure``, and returns the gradient at what was measured: ``at_products`` for all pairs or
    some anchors' pairs, and then ``at_anchors`` for all.
    """

    anchors: Tensor  # (a, d), without a graph
    rows: Rows  # (n, d)
    are_finite: bool = False  # whether the host knows that anchors and rows are
    _products: dict[bool, _Products] = field(default_factory=dict, init=False)
    _noise: dict[bool, _NoiseToSignal] = field(default_factory=dict, init=False)
    _by_pml: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)
    _euclidean: Tensor | None = field(default=None, init=False)
    _unit_anchors: tuple[Tensor, Tensor] | None = field(default=None, init=False)
    _zero: Tensor | None = field(default=None, init=False)  # see zero_if_finite

    def measure(self, distance: BaseDistance) -> Tensor:
        """Returns what a distance measures, ``(a, n)``, without a graph."""
        if not is_read_off(distance):
            return self._measure_by_pml(distance)
        mat = self._measure_without_power(distance)
        return mat if distance.power == 1 else mat**distance.power

    def is_needed_once(self, distance: BaseDistance) -> bool:
        """Returns whether a loss may overwrite the matrix as it reads it, as no gradient depends on it."""
        return is_symmetric(distance) and distance.power == 1 and not isinstance(distance, LpDistance)

    def at_products(self, distance: BaseDistance, gradient: Tensor, anchors: slice = slice(None)) -> Tensor:
        """Returns the gradient at the products, given that at what was measured, of some anchors, ``(k, n)``.

        The given gradient may be overwritten.
        """
        if not is_read_off(distance) or self.is_needed_once(distance):
            return gradient  # ``at_anchors`` does all
        mat = self._measure_without_power(distance)[anchors]
        if distance.power != 1:
            slope = distance.power * mat ** (distance.power - 1)
            if distance.power < 1:  # infinite at 0, where it is taken for 0
                slope.masked_fill_(mat == 0, 0.0)
            gradient = gradient * slope
        if not isinstance(distance, LpDistance):
            return gradient
        # The square is 2 - 2 v·r, so the derivative is -1 over the distance, and taken for 0 at 0.
        least = 0.5 * (_ROUNDING * torch.finfo(mat.dtype).eps) ** 0.5
        return gradient.div(mat.clamp_min(least).neg_()).mul_(mat.sign())

    def at_anchors(self, distance: BaseDistance, gradient: Tensor) -> Tensor:
        """Returns the gradient at the anchors, ``(a, d)``, given that at the products.

        The given gradient may be overwritten.
        """
        if not is_read_off(distance):
            leaf, mat = self._by_pml[id(distance)]
            (gradient,) = torch.autograd.grad(mat, leaf, gradient)
            return gradient
        is_normalized = distance.normalize_embeddings
        if isinstance(distance, SNRDistance):
            gradient = self._noise_at_vectors(is_normalized, gradient)
        elif is_normalized:
            gradient = self.rows.weighted_sum(gradient, self._products[True].factors)
        else:
            gradient = self.rows.weighted_sum(gradient)
        return self._before_scaling(gradient) if is_normalized else gradient

    def zero_if_finite(self) -> Tensor | float:
        """Returns zero, and NaN if an anchor or a row holds NaN or inf."""
        if self.are_finite:
            return 0.0
        if self._zero is None:
            self._zero = zero_if_finite(self.anchors)
            for _, part in self.rows.parts(self.anchors.dtype):
                self._zero += zero_if_finite(part)
        return self._zero

    def _measure_without_power(self, distance: BaseDistance) -> Tensor:
        if isinstance(distance, LpDistance):
            return self._measure_euclidean()
        if isinstance(distance, SNRDistance):
            return self._measure_noise(distance.normalize_embeddings)
        return self._multiply(distance.normalize_embeddings).mat

    def _measure_by_pml(self, distance: BaseDistance) -> Tensor:
        if id(distance) not in self._by_pml:
            with torch.enable_grad():
                leaf = self.anchors.detach().requires_grad_()
                # Not the leaf itself, as who follows modules may hang a hook on what they get.
                mat = distance(leaf.view_as(leaf), self.rows.read(leaf.dtype))
                self._by_pml[id(distance)] = leaf, mat
        return self._by_pml[id(distance)][1].detach()

    def _scaled_anchors(self) -> tuple[Tensor, Tensor]:
        """Returns anchors of unit length, and their lengths ``(a, 1)``."""
        if self._unit_anchors is None:
            norms = torch.linalg.vector_norm(self.anchors, dim=1, keepdim=True).clamp_min_(_SMALLEST_NORM)
            self._unit_anchors = self.anchors / norms, norms
        return self._unit_anchors

    def _before_scaling(self, gradient: Tensor) -> Tensor:
        """Returns the gradient at the anchors, given that at anchors of unit length."""
        vectors, norms = self._scaled_anchors()
        # A change of length changes nothing.
        along = (gradient * vectors).sum(dim=1, keepdim=True)
        return torch.addcmul(gradient, vectors, along, value=-1).div_(norms)

    def _multiply(self, is_normalized: bool) -> _Products:
        """Returns the products of anchors and rows, or the cosines between them."""
        if is_normalized not in self._products:
            vectors = self._scaled_anchors()[0] if is_normalized else self.anchors
            mat, lengths = self._products_and_lengths(vectors, is_normalized)
            factors = None if lengths is None else self._inverse_lengths(lengths)
            if factors is not None:
                mat *= factors
            self._products[is_normalized] = _Products(mat, factors)
        return self._products[is_normalized]

    def _products_and_lengths(self, vectors: Tensor, has_lengths: bool) -> tuple[Tensor, Tensor | None]:
        """Returns products of vectors with rows, ``(a, n)``, and lengths of the rows ``(n,)`` on request."""
        lengths: Tensor | None
        if is_in_compiled_step():  # which measures rows without writing them out
            mat, lengths = self.rows.products(vectors), self.rows.lengths(vectors.dtype)
            lengths = lengths if has_lengths else None
        else:
            mat, lengths = self._by_parts(vectors, has_lengths)
        if self._zero is None and not self.are_finite:
            # A vector that is not finite has no finite product or length: one row and one column tell of all.
            if lengths is None:
                self._zero = zero_if_finite(mat[:1], mat[:, :1])
            else:
                self._zero = (lengths.sum() + self._scaled_anchors()[1].sum()) * 0
        return mat, lengths

    def _by_parts(self, vectors: Tensor, has_lengths: bool) -> tuple[Tensor, Tensor | None]:
        """Returns products, and lengths on request, by parts that stay in the cache."""
        num_rows, mat, lengths = self.rows.most_rows_here, None, None
        for indices, part in self.rows.parts(vectors.dtype):
            if part.shape[0] == num_rows:
                lengths = torch.linalg.vector_norm(part, dim=1) if has_lengths else None
                return vectors @ part.t(), lengths
            if mat is None or lengths is None:
                mat, lengths = vectors.new_empty(len(vectors), num_rows), vectors.new_empty(num_rows)
            torch.mm(vectors, part.t(), out=mat[:, indices])
            if has_lengths:
                torch.linalg.vector_norm(part, dim=1, out=lengths[indices])
        if mat is None:
            return vectors.new_empty(len(vectors), 0), vectors.new_empty(0) if has_lengths else None
        return mat, lengths if has_lengths else None

    def _inverse_lengths(self, lengths: Tensor) -> Tensor:
        """Returns 1 over lengths, in place; 0 for a row of zeros, which has no direction."""
        least = self.rows.least_length(lengths.dtype)
        if isinstance(least, float):
            return threshold(lengths, least, torch.inf, inplace=True).reciprocal_()
        return computed_once(lengths.masked_fill_(lengths <= least, torch.inf).reciprocal_())

    def _measure_euclidean(self) -> Tensor:
        """Returns |v - r| of unit vectors, whose square is 2 - 2 v·r."""
        if self._euclidean is None:
            cosines, factors = self._multiply(is_normalized=True)
            assert factors is not None
            # The squared length after scaling is 1, or 0 for a vector of zeros.
            squared = torch.add(factors > 0, cosines, alpha=-2)
            squared += self.anchors.any(dim=1, keepdim=True)
            equal = _ROUNDING * torch.finfo(squared.dtype).eps
            self._euclidean = threshold(squared, equal, 0.0, inplace=True).sqrt_()
        return self._euclidean

    def _measure_noise(self, is_normalized: bool) -> Tensor:
        """Returns the variance of the difference over that of the anchor."""
        if is_normalized not in self._noise:
            vectors = self._scaled_anchors()[0] if is_normalized else self.anchors
            vectors = vectors - vectors.mean(dim=1, keepdim=True)  # so that means of rows make no difference
            products, lengths = self._products_and_lengths(vectors, is_normalized)
            row_signal = vectors.new_empty(self.rows.most_rows_here)
            for indices, part in self.rows.parts(vectors.dtype):
                row_signal[indices] = (part - part.mean(dim=1, keepdim=True)).square().sum(dim=1)
            factors = None if lengths is None else self._inverse_lengths(lengths)
            if factors is not None:
                products, row_signal = products * factors, row_signal * factors.square()
            signal = vectors.square().sum(dim=1, keepdim=True)
            noise = signal + row_signal - 2 * products
            is_rounding = noise < signal * _ROUNDING * torch.finfo(noise.dtype).eps
            mat = (noise / signal).masked_fill_(is_rounding, 0.0)
            self._noise[is_normalized] = _NoiseToSignal(mat, vectors, signal, factors)
        return self._noise[is_normalized].mat

    def _noise_at_vectors(self, is_normalized: bool, gradient: Tensor) -> Tensor:
        """Returns the gradient at (unit) anchors of noise over signal."""
        mat, vectors, signal, factors = self._noise[is_normalized]
        gradient = (gradient / signal).masked_fill_(mat == 0, 0.0)
        by_signal = (gradient * (1 - mat)).sum(dim=1, keepdim=True)
        found = self.rows.weighted_sum(-2 * gradient, factors).addcmul_(vectors, 2 * by_signal)
        return found - found.mean(dim=1, keepdim=True)


def is_symmetric(distance: BaseDistance) -> bool:
    """Returns whether a distance is known to measure the same from both ends of a pair."""
    return is_read_off(distance) and not isinstance(distance, SNRDistance)


def is_read_off(distance: BaseDistance) -> bool:
    """Returns whether a distance follows from products and lengths; PML's code measures others."""
    is_of_pml = type(distance) in DISTANCES and distance.p == 2
    is_of_lengths = type(distance) is LpDistance and not distance.normalize_embeddings
    return is_of_pml and not is_of_lengths and not distance.collect_stats
