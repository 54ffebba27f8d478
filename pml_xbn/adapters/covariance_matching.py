"""Cross Batch Normalization that matches covariances, not only standard deviations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._arithmetic import widest
from .._checks import check_one_of


class CovarianceMatching(nn.Module):
    r"""Gives the memory the mean and the covariance of the batch.

    .. math:: \hat z = A (z - \mu) + \mu', \quad A\, \Sigma\, A^T = \Sigma'

    with μ, Σ of the memory and μ′, Σ′ of the batch (Adaptive Cross Batch Normalization, Eq. 7-9 and 11). You
    may want to try it where dimensions are strongly correlated and batches are large. The papers' experiments
    and ours use :class:`MomentMatching`.

    Many matrices A fulfil the equation. With correlations C and C′ and standard deviations D and D′, so that
    Σ = D C D, the choices are

    * ``"principal"``, the paper's Eq. 10: :math:`A = (\Sigma' \Sigma^{-1})^{1/2}`, whose eigenvalues are
      positive. With ``shrinkage=0`` it does not depend on the coordinates.
    * ``"symmetric"``: :math:`A = D' C'^{1/2} C^{-1/2} D^{-1}` with symmetric roots. It depends neither on the
      order of the dimensions nor on their scales, but it depends on the axes.
    * ``"cholesky"``: :math:`A = D' L' L^{-1} D^{-1}` with the Cholesky factors of C′ and C. A dimension
      depends only on those before it. This root takes the least time.

    Before that both covariances are blended with their diagonals,
    :math:`\Sigma \leftarrow (1 - s) \Sigma + s\, \mathrm{diag}(\Sigma)`. Both are blended so that A is the
    identity where memory and batch are alike. With s = 1 all three roots equal :class:`MomentMatching`, which
    is the paper's Eq. 12. They also do so where a blended covariance is singular, and in dimensions without
    spread in memory or batch.

    Args:
        root: one of the three above (default ``"principal"``).
        shrinkage: s in [0, 1] (default 0.5). A batch with no more rows than dimensions has a singular
            covariance and needs s > 0. The noise of off-diagonal elements is of the order of 1/√b, which is
            why the default is as large as one half.

    Raises:
        ValueError: another root, or a ``shrinkage`` outside [0, 1].

    Example:
        >>> memory, batch = torch.randn(50, 2), torch.randn(20, 2) @ torch.tensor([[1.0, 1.0], [0.0, 1.0]])
        >>> adapted = CovarianceMatching(shrinkage=0.0)(memory, torch.zeros(50), batch, torch.zeros(20))
        >>> torch.allclose(adapted.T.cov(), batch.T.cov(), atol=1e-4)
        True
    """

    def __init__(self, root: str = "principal", shrinkage: float = 0.5) -> None:
        check_one_of("root", root, ("principal", "symmetric", "cholesky"))
        if not 0 <= shrinkage <= 1:
            raise ValueError(f"shrinkage={shrinkage!r}: pass a number in [0, 1]")
        super().__init__()
        self.root, self.shrinkage = root, shrinkage

    @torch.no_grad()
    def forward(
        self, memory: Tensor, memory_labels: Tensor, batch: Tensor, batch_labels: Tensor
    ) -> Tensor | None:
        """Returns the rows ``(n, d)`` of a memory, adapted to a batch ``(b, d)``.

        Returns None, which leaves the rows as they are, where memory or batch has fewer than two rows.
        """
        if min(len(memory), len(batch)) < 2:
            return None
        mean, covariance = _moments(memory)
        new_mean, new_covariance = _moments(batch)
        matrix = self.matrix(covariance, new_covariance)
        adapted = torch.addmm(new_mean, widest(memory) - mean, matrix.T).to(memory.dtype)
        return torch.where(torch.isfinite(adapted).all(), adapted, memory)

    def matrix(self, memory: Tensor, batch: Tensor) -> Tensor:
        """Returns the matrix A, given the covariances Σ and Σ′, ``(d, d)`` each."""
        covariances = torch.stack([memory, batch])
        stds = covariances.diagonal(dim1=1, dim2=2).sqrt()
        # A dimension without spread has no correlation with any other.
        sizes = torch.where((stds > 0).all(dim=0), stds, torch.inf)
        correlations = (1 - self.shrinkage) * covariances / (sizes.unsqueeze(2) * sizes.unsqueeze(1))
        correlations.diagonal(dim1=1, dim2=2).fill_(1.0)
        factors, info = torch.linalg.cholesky_ex(correlations)
        least = torch.finfo(factors.dtype).eps ** 0.5
        are_regular = (info == 0).all() & (factors.diagonal(dim1=1, dim2=2).square() > least).all()
        unit = torch.eye(len(memory), dtype=memory.dtype, device=memory.device)
        old, new = torch.where(are_regular, correlations, unit)
        std, new_std = stds
        # With NaN among the numbers the map is not used, but the roots below must still be computable.
        scale = torch.where(std > 0, new_std / std, 1.0).nan_to_num(1.0, 1.0)
        size = torch.where(std > 0, std, 1.0)
        return size.unsqueeze(1) * self._solve(old, new, torch.diag(scale)) / size

    def _solve(self, old: Tensor, new: Tensor, scales: Tensor) -> Tensor:
        """Returns D⁻¹ A D, given the correlations C and C′ and the diagonal D′ / D, ``(d, d)`` each."""
        if self.root == "cholesky":
            factor, new_factor = torch.linalg.cholesky(old), torch.linalg.cholesky(new)
            solved: Tensor = torch.linalg.solve_triangular(factor, new_factor, upper=False, left=False)
            return scales @ solved
        root, inverse = _roots(old)
        if self.root == "symmetric":
            return scales @ _roots(new)[0] @ inverse
        return root @ _roots(inverse @ scales @ new @ scales @ inverse)[0] @ inverse


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean ``(d,)`` and the covariance ``(d, d)``.

    A variance as small as a few rounding errors of the mean is zero.
    """
    wide = widest(rows)
    mean, covariance = wide.mean(dim=0), torch.atleast_2d(wide.T.cov())
    variance, least = covariance.diagonal(), 8 * torch.finfo(rows.dtype).eps * mean
    variance *= variance > least.square()
    return mean, covariance


def _roots(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the symmetric root of a symmetric matrix, and the root's inverse where there is one."""
    values, vectors = torch.linalg.eigh(matrix)
    roots = values.clamp(min=0).sqrt()  # an eigenvalue below zero is rounding
    return (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T
