"""Losses of the papers that PML does not have, and which stand beside another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize


class NoLoss(nn.Module):
    """Zero."""

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: Any = None) -> Tensor:
        return embeddings.new_zeros(())


class RingLoss(nn.Module):
    r"""Ring Loss, :math:`\frac{1}{2m} \sum_i (\lVert f_i \rVert_2 - R)^2` (SGSL, Eq. 4, without λ).

    R is learnt and starts as the mean norm of the first batch, as in the code of Ring Loss's authors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.radius = nn.Parameter(torch.tensor(-1.0))  # below 0: there was no batch yet

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: Any = None) -> Tensor:
        norms = embeddings.norm(dim=1)
        with torch.no_grad():
            self.radius.copy_(torch.where(self.radius < 0, norms.mean(), self.radius))
        return (norms - self.radius).square().mean() / 2


class CenterContrastiveLoss(nn.Module):
    r"""Center Contrastive Loss (thesis, Eq. 3.4).

    .. math::
        L = -\log \frac{e^{s (c_y^T x - m) + 2 \lambda c_y^T x}}
        {e^{s (c_y^T x - m)} + \sum_{j=1}^{K} e^{s\, c_j^T x}}

    Embeddings x and centres c are of unit length. The thesis does not say how centres are found, nor the
    numbers: here they are trained with the model, s and m are those of PML's ``CosFaceLoss``, and λ is 1.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        scale: float = 64.0,
        margin: float = 0.35,
        centre_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(num_classes, embedding_size))
        self.scale, self.margin, self.centre_weight = scale, margin, centre_weight

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: Any = None) -> Tensor:
        cosines = normalize(embeddings) @ normalize(self.centres).T
        own = cosines.gather(1, labels[:, None])
        with_margin = self.scale * (own - self.margin)
        total = torch.cat([with_margin, self.scale * cosines], dim=1).logsumexp(dim=1, keepdim=True)
        return (total - with_margin - 2 * self.centre_weight * own).mean()
