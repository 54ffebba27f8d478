"""Cross Batch Normalization with all covariances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._dtypes import widest
from .._number_checks import check_one_of
from ._rows import Rows
from .base_adapter import BaseAdapter, Given
from .linear import Linear
from .moments import Moments


class CovarianceMatching(BaseAdapter):
    r"""Gives the memory the mean and the covariance of the batch, not only each dimension's variance.

    .. math:: \hat z = A (z - E[R]) + E[B], \quad A\, \Sigma[R]\, A^T = \Sigma[B]

    (Adaptive Cross Batch Normalization, Eq. 7-9.) Many matrices A do that. Here A is
    :math:`F_B F_R^{-1}` with the Cholesky factors, or the symmetric square roots, of Σ[B] and Σ[R]; with the
    latter it is Eq. 10, :math:`(\Sigma[B] \Sigma[R]^{-1})^{1/2}`, wherever the two covariances commute. b is
    that of Eq. 11. Both covariances are blended with their diagonals first:
    :math:`\Sigma \leftarrow (1 - s) \Sigma + s\, \mathrm{diag}(\Sigma)`. Both, so that A is the
    identity where memory and batch are alike; s = 1 is :class:`MomentMatching`, the paper's Eq. 12.

    Where a covariance is still singular, the rows take the map of :class:`MomentMatching`. The memory keeps
    d × d coordinates and sums; a step takes O(d³), and reading the rows O(n d²).

    Args:
        root: ``"cholesky"``, which depends on the order of the dimensions, or ``"symmetric"``, which does
            not and moves rows less, and takes longer.
        shrinkage: s in [0, 1]. A batch of no more rows than dimensions has a singular covariance and needs
            s > 0; the noise of its off-diagonal elements is of the order of 1/√b, hence one half.
        collect_stats: see :class:`BaseAdapter`.

    Raises:
        ValueError: another root, or a ``shrinkage`` outside [0, 1].

    Example:
        >>> memory, batch = torch.randn(50, 2), torch.randn(20, 2) @ torch.tensor([[1.0, 1.0], [0.0, 1.0]])
        >>> adapted = CovarianceMatching(shrinkage=0.0)(memory, torch.zeros(50), batch, torch.zeros(20))
        >>> torch.allclose(adapted.T.cov(), batch.T.cov(), atol=1e-4)
        True
    """

    needs_covariance = True

    def __init__(self, root: str = "cholesky", shrinkage: float = 0.5, **kwargs: Any) -> None:
        check_one_of("root", root, ("cholesky", "symmetric"))
        if not 0 <= shrinkage <= 1:
            raise ValueError(f"shrinkage={shrinkage!r}: pass a number in [0, 1]")
        super().__init__(**kwargs)
        self.root = root
        self.shrinkage = shrinkage

    def map_covariances(self, memory: Tensor, batch: Tensor, of_memory: Moments, target: Moments) -> Linear:
        """The map, given the covariances ``(d, d)`` and moments ``(d,)`` of memory and batch."""
        has_spread = of_memory.std > 0
        least = 2.0**-70 * of_memory.std  # where rows become equal, the matrix still has an inverse
        new_std = torch.where(has_spread, torch.maximum(target.std, least), 1.0)
        old_std = torch.where(has_spread, of_memory.std, 1.0)
        old, is_old_regular = self._root(memory, of_memory.std)
        new, is_new_regular = self._root(batch, torch.where(has_spread, target.std, 0.0))
        matrix = new_std.unsqueeze(1) * torch.linalg.solve_ex(old.T, new.T)[0].T / old_std
        is_regular = is_old_regular & is_new_regular & torch.isfinite(matrix).all()
        matrix = torch.where(is_regular, matrix, torch.diag(new_std / old_std))
        return Linear(matrix, target.mean - matrix @ of_memory.mean)

    def _root(self, covariance: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """A root of the blended correlations, and whether it has an inverse."""
        size = torch.where(std > 0, std, torch.inf)  # a dimension without spread goes with no other
        correlations = (1 - self.shrinkage) * covariance / torch.outer(size, size)
        correlations = correlations.fill_diagonal_(1.0)
        least = torch.finfo(std.dtype).eps ** 0.5
        if self.root == "cholesky":
            factor, info = torch.linalg.cholesky_ex(correlations)
            return factor, (info == 0) & (factor.diagonal().square() > least).all()
        is_finite = torch.isfinite(correlations).all()
        unit = torch.eye(len(std), dtype=std.dtype, device=std.device)
        values, vectors = torch.linalg.eigh(torch.where(is_finite, correlations, unit))
        root = (vectors * values.clamp(min=least).sqrt()) @ vectors.T
        return root, is_finite & (values > least).all()

    def _adapted(self, rows: Rows, given: Given) -> Rows:
        batch = widest(given.batch)
        centred = batch - batch.mean(dim=0)
        covariance = centred.T @ centred / (len(batch) - 1)
        linear = self.map_covariances(rows.covariance(), covariance, given.of_memory, given.target)
        return rows.adapted(rows.bounded(linear, given.of_memory))
