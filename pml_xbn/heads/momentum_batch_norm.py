"""Batch normalization by the moments of this batch and of earlier ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._arithmetic import at_least_float32, widest
from .._checks import check_integer, check_positive


class MomentumBatchNorm(nn.Module):
    r"""Momentum Batch Normalization (MBN) of rows, for small batches.

    Adaptive Cross Batch Normalization, Appendix A and Table 3, compares it with XBN, and found that networks
    whose embeddings it normalizes did not train. That paper gives the ideal batch size m₀ (128 for batches of
    64, 32 for batches of 16). All else follows Yong et al., Momentum Batch Normalization for Deep Learning
    with Small Batch Size (ECCV 2020). For a batch of m rows with mean :math:`\mu_B` and biased variance
    :math:`\sigma_B^2`, per dimension,

    .. math::
        \mu &\leftarrow \lambda \mu + (1 - \lambda) \mu_B \\
        \sigma^2 &\leftarrow \lambda \sigma^2 + (1 - \lambda) \sigma_B^2 \\
        y &= \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \cdot weight + bias

    in training. Gradients flow through the batch's part of the moments. The momentum grows from 0 at the
    first call, which is batch normalization, to 1 - ρᵀ at the T-th and after:

    .. math::
        \lambda = \rho^{\frac{T}{T - 1} \max(T - t, 0)} - \rho^T, \qquad
        \rho = \min(m / m_0, 1)^{1/T}

    with t counted in calls, where Yong et al. count epochs. In ``eval()`` mode the moments are averages
    of their own, with momentum :math:`\tau = \tau_0^{m / m_0}`.

    Args:
        num_features: d.
        num_calls: T, the number of training calls until the momentum is full: epochs · batches per epoch, 2
            or more.
        ideal_batch_size: m₀ (default 128). A batch at least as large is normalized by its own moments.
        ideal_momentum: τ₀ in [0, 1) (default 0.9).
        eps: ε, above 0 (default 1e-5).

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> norm = MomentumBatchNorm(1, num_calls=2, ideal_batch_size=4)
        >>> for rows in ([[0.0], [2.0]], [[8.0], [10.0]]):  # λ = 0 and 1/2
        ...     normalized = norm(torch.tensor(rows))
        >>> norm.mean, norm.var
        (tensor([5.]), tensor([1.]))
    """

    mean: Tensor
    var: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        num_calls: int,
        ideal_batch_size: int = 128,
        ideal_momentum: float = 0.9,
        eps: float = 1e-5,
    ) -> None:
        check_integer("num_features", num_features, at_least=1)
        check_integer("num_calls", num_calls, at_least=2)
        check_integer("ideal_batch_size", ideal_batch_size, at_least=1)
        if not 0 <= ideal_momentum < 1:
            raise ValueError(f"ideal_momentum={ideal_momentum!r}: pass a number in [0, 1)")
        check_positive("eps", eps)
        super().__init__()
        self.num_features = num_features
        self.num_calls = num_calls
        self.ideal_batch_size = ideal_batch_size
        self.ideal_momentum = ideal_momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("var", torch.ones(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, rows: Tensor) -> Tensor:
        """Maps rows ``(b, d)`` to rows ``(b, d)`` of the same dtype, computed in float32 or better.

        Raises:
            ValueError: the rows have another shape, or there are none in training.
        """
        if rows.ndim != 2 or rows.shape[1] != self.num_features or (self.training and len(rows) == 0):
            raise ValueError(
                f"rows has shape {tuple(rows.shape)}: pass (b, {self.num_features}), with b of 1 or more"
            )
        precise = at_least_float32(rows)
        mean, var = self._follow(precise) if self.training else (self.running_mean, self.running_var)
        return ((precise - mean) / (var + self.eps).sqrt() * self.weight + self.bias).to(rows.dtype)

    def _follow(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Updates the moments μ and σ² with this batch, and returns them."""
        batch_mean = rows.mean(dim=0)
        batch_var = (rows - batch_mean).square().mean(dim=0)
        with torch.no_grad():
            self.num_batches_tracked += 1
        momentum = self._momentum(len(rows))
        mean = momentum * self.mean + (1 - momentum) * batch_mean
        var = momentum * self.var + (1 - momentum) * batch_var
        kept = self.ideal_momentum ** (len(rows) / self.ideal_batch_size)
        with torch.no_grad():
            self.mean.copy_(mean)
            self.var.copy_(var)
            self.running_mean.lerp_(batch_mean.to(self.running_mean.dtype), 1 - kept)
            self.running_var.lerp_(batch_var.to(self.running_var.dtype), 1 - kept)
        return mean, var

    def _momentum(self, batch_size: int) -> Tensor:
        """Returns λ at call t, a 0-d tensor that stays on its device."""
        final = min(batch_size / self.ideal_batch_size, 1.0)  # ρᵀ
        remaining = widest(self.num_calls - self.num_batches_tracked).clamp(min=0) / (self.num_calls - 1)
        momentum: Tensor = final**remaining - final
        return momentum

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, num_calls={self.num_calls}, ideal_batch_size={self.ideal_batch_size}, "
            f"ideal_momentum={self.ideal_momentum}, eps={self.eps}"
        )
