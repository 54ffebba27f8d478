"""Generalized mean pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._arithmetic import at_least_float32
from .._checks import check_positive


class GeMPooling(nn.Module):
    r"""Pools every channel of a feature map to its generalized mean, with a learned exponent.

    .. math:: f_k = \left( \frac{1}{|X_k|} \sum_{x \in X_k} \max(x, \epsilon)^p \right)^{1/p}

    p = 1 is average pooling, and p → ∞ is max pooling. Stop-Gradient Softmax Loss (Implementation Details)
    uses it in place of average pooling. It refers to Radenović, Tolias and Chum, Fine-tuning CNN Image
    Retrieval with No Human Annotation (https://arxiv.org/abs/1711.02512), where p is learned and starts
    at 3. A mean of powers needs positive numbers, so every number below ε counts as ε. After
    :func:`remove_last_bn_relu` a map has negative numbers too, and pooling cuts them off.

    Args:
        p: the exponent to start from (default 3), one for all channels.
        eps: ε, above 0 (default 1e-6).

    Raises:
        ValueError: ``p`` or ``eps`` is not above 0.

    Example:
        >>> GeMPooling(p=2.0)(torch.tensor([[[[1.0, 7.0]]]])).detach()
        tensor([[5.]])
    """

    p: Tensor

    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        check_positive("p", p)
        check_positive("eps", eps)
        super().__init__()
        self.p = nn.Parameter(torch.tensor(float(p)))
        self.eps = eps

    def forward(self, features: Tensor) -> Tensor:
        """Pools maps ``(b, c, h, w)`` to ``(b, c)`` in the same dtype, computed in float32 or better.

        Raises:
            ValueError: the features are no maps.
        """
        if features.ndim != 4:
            raise ValueError(
                f"features has shape {tuple(features.shape)}: pass a map (b, c, h, w), as timm's models give "
                "with num_classes=0, global_pool=''"
            )
        positive = at_least_float32(features).clamp(min=self.eps)
        # Divided by the largest number, so that powers neither vanish nor overflow.
        largest = positive.detach().amax(dim=(2, 3), keepdim=True)
        powers = (positive / largest) ** self.p
        pooled: Tensor = largest[:, :, 0, 0] * powers.mean(dim=(2, 3)) ** (1 / self.p)
        return pooled.to(features.dtype)

    def extra_repr(self) -> str:
        return f"p={self.p.item():.4g}, eps={self.eps}"
