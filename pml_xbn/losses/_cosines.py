"""Distances of anchors to stored rows, which are read off one matrix of products."""

from __future__ import annotations

import weakref
from functools import cached_property
from typing import Any

import torch
from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity, LpDistance, SNRDistance
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .._dtypes import at_least_float32
from ..memory._rows import Rows
from ._row_products import RowProducts
from ._twins import has_hooks, is_as_built, twin_of

_PAIRS_AT_ONCE = 2**14
SMALLEST_NORM = 1e-12  # what torch.nn.functional.normalize divides by at least


class Distances:
    """What lies between anchors ``(a, d)`` and rows; PML's own distances measure it where they have to.

    Each of PML's distances would scale a copy of all rows to unit length, and multiply it with the
    anchors. Here the rows are read once, multiplied as they are, and the products divided by their lengths.
    """

    def __init__(self, anchors: Tensor, rows: Rows) -> None:
        self.anchors = anchors
        self._rows = rows
        self._is_differentiated = torch.is_grad_enabled()

    @cached_property
    def row_tensor(self) -> Tensor:
        """The rows, ``(n, d)``, for who measures for himself."""
        return self._rows.read(self.anchors.dtype)

    @cached_property
    def placeholder(self) -> Tensor:
        """Stands for the rows, ``(n, d)``, where nobody looks at them."""
        return self.anchors.new_zeros(()).expand(len(self._rows), self.anchors.shape[1])

    @cached_property
    def row_products(self) -> RowProducts:
        """Of rows with all rows."""
        return RowProducts(self.anchors, self._rows)

    def projections(self) -> Tensor:
        """Anchors of unit length times rows as they are, ``(a, n)``, in float32 at least."""
        anchors = torch.nn.functional.normalize(at_least_float32(self.anchors))
        return self._products(anchors, is_scaled=False)[0]

    def measured(self, distance: BaseDistance) -> Tensor:
        """What the distance measures between anchors and rows, ``(a, n)``; not to be written to."""
        mat: Tensor
        if is_of_cosines(distance):
            mat = self._cosines[0] if isinstance(distance, CosineSimilarity) else self._euclidean()
        elif type(distance) is SNRDistance and _is_plain(distance):
            mat = self._noise_to_signal(distance.normalize_embeddings)
        else:
            mat = distance(self.anchors, self.row_tensor)
            return mat
        mat = mat if distance.power == 1 else mat**distance.power
        if not has_hooks(distance):
            return mat

        def forward(query_emb: Tensor, ref_emb: Tensor) -> Tensor:
            if query_emb is not self.anchors or ref_emb is not self.row_tensor:  # a hook has changed them
                return type(distance).forward(distance, query_emb, ref_emb)  # type: ignore[no-any-return]
            return mat

        return twin_of(distance, forward=forward)(self.anchors, self.row_tensor)  # type: ignore[no-any-return]

    def reading(self, distance: BaseDistance, rows: Tensor) -> BaseDistance:
        """One that reads what this distance would measure between the anchors and ``rows`` off the cosines.

        Args:
            rows: the rows, or the placeholder, which it is to be asked for; it measures others itself.
        """

        def forward(query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
            if query_emb is not self.anchors or ref_emb is not rows:
                mat: Tensor = type(distance).forward(distance, query_emb, ref_emb)
                return mat
            # MultiSimilarityMiner writes to it.
            return self.measured(distance).clone()

        return twin_of(distance, forward=forward)

    # What is kept a miner may ask for first, which takes no gradients; who asks next may be a loss.
    @cached_property
    def _anchor_norms(self) -> Tensor:
        with torch.set_grad_enabled(self._is_differentiated):
            norms: Tensor = torch.linalg.vector_norm(self.anchors, dim=1, keepdim=True)
        return norms

    @cached_property
    def _cosines(self) -> tuple[Tensor, Tensor]:
        """The matrix ``(a, n)``, and the lengths of the rows ``(n,)``, but at least the smallest."""
        with torch.set_grad_enabled(self._is_differentiated):
            mat, divisors, _ = self._products(self._directions())
        return mat, divisors

    def _directions(self) -> Tensor:
        return self.anchors / self._anchor_norms.clamp_min(SMALLEST_NORM)

    def _products(
        self, vectors: Tensor, is_scaled: bool = True, is_centred: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows = self._rows
        # What the graph saves goes after its backward pass, and the rows with it: an attribute of the graph's
        # own would stay as long as somebody keeps the loss.
        with saved_tensors_hooks(lambda saved: (saved, rows), lambda packed: packed[0]):
            products: tuple[Tensor, Tensor, Tensor] = _Products.apply(vectors, rows, is_scaled, is_centred)
        return products

    def _euclidean(self) -> Tensor:
        mat, divisors = self._cosines
        # Squared lengths after scaling: 1, but 0 for a vector of zeros.
        squared = torch.add((divisors > SMALLEST_NORM).to(mat), mat, alpha=-2)
        squared += self._anchor_norms > SMALLEST_NORM
        # Rounding hides which of the closest vectors are equal, and takes some below zero, where the root
        # has no gradient.
        eps = torch.finfo(squared.dtype).eps
        equal = self._are_equal(squared.detach() < 16 * eps)
        distances: Tensor = squared.clamp_min_(eps).sqrt_()
        # The root's gradient is computed from its values.
        fill = Tensor.masked_fill if distances.requires_grad else Tensor.masked_fill_
        return fill(distances, equal, 0.0)

    def _noise_to_signal(self, is_scaled: bool) -> Tensor:
        """The variance of the difference over that of the anchor."""
        vectors = self._directions() if is_scaled else self.anchors
        vectors = vectors - vectors.mean(dim=1, keepdim=True)
        products, _, squares = self._products(vectors, is_scaled, True)
        signal = vectors.square().sum(dim=1, keepdim=True)
        noise = -2 * products
        noise += squares
        noise += signal
        equal = self._are_equal(noise.detach() < signal.detach() * torch.finfo(noise.dtype).eps ** 0.5)
        return (noise.clamp_min_(0) / signal).masked_fill(equal, 0)

    def _are_equal(self, allowed: Tensor) -> Tensor:
        """Where an anchor and a row are the same vector, of the pairs allowed, ``(a, n)`` bool; in place."""
        anchors, candidates = self.anchors.detach(), allowed.nonzero()
        equal = allowed.zero_()
        for pairs in candidates.split(_PAIRS_AT_ONCE):
            # One coordinate tells nearly all pairs apart, so that few need a look at all.
            firsts = self._rows.column(0, pairs[:, 1], anchors.dtype)
            of_anchors, of_rows = pairs[anchors[pairs[:, 0], 0] == firsts].unbind(dim=1)
            rows = self._rows.at(of_rows, anchors.dtype)
            equal[of_anchors, of_rows] = (anchors[of_anchors] == rows).all(dim=1)
        return equal


def is_of_cosines(distance: Any) -> bool:
    """Whether it is the cosine, or the Euclidean distance of unit vectors, and nothing besides."""
    return (
        type(distance) in (CosineSimilarity, LpDistance)
        and distance.normalize_embeddings
        and _is_plain(distance)
    )


def _is_plain(distance: Any) -> bool:
    return distance.p == 2 and not distance.collect_stats and is_as_built(distance)


class _Products(torch.autograd.Function):
    """Products of vectors ``(a, d)`` with rows; no gradient for the rows.

    Args:
        is_scaled: with rows over their lengths, but at least the smallest; else with rows as they are.
        is_centred: with rows less the mean of their coordinates. The vectors have a mean of 0.

    Returns:
        The matrix ``(a, n)``; what the rows were divided by, ``(n,)``; and, if they are centred, the squared
        lengths of what the vectors are multiplied with, ``(n,)``.
    """

    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, rows: Rows, is_scaled: bool = True, is_centred: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        mat = vectors.new_empty(len(vectors), len(rows))
        divisors = vectors.new_ones(len(rows))
        squares = torch.zeros_like(divisors)
        # In half precision autocast would round the rows, and long ones would overflow.
        with torch.autocast(vectors.device.type, enabled=False):
            for places, part in rows.parts(vectors.dtype):
                if is_scaled:
                    torch.linalg.vector_norm(part, dim=1, out=divisors[places]).clamp_min_(SMALLEST_NORM)
                if is_centred:
                    part = part - part.mean(dim=1, keepdim=True)
                    squares[places] = (torch.linalg.vector_norm(part, dim=1) / divisors[places]).square()
                torch.mm(vectors, part.t(), out=mat[:, places]).div_(divisors[places])
        ctx.rows = weakref.ref(rows)
        ctx.save_for_backward(divisors)
        ctx.mark_non_differentiable(divisors, squares)
        ctx.set_materialize_grads(False)
        return mat, divisors, squares

    @staticmethod
    def backward(ctx: Any, of_mat: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if of_mat is None:
            return None, None, None, None
        (divisors,) = ctx.saved_tensors
        with torch.autocast(of_mat.device.type, enabled=False):
            # Of vectors with a mean of 0 what the rows' means would take off makes no difference.
            return ctx.rows().weighted_sum(of_mat / divisors), None, None, None
