"""How many embeddings lie near the mean of their superclass."""

from __future__ import annotations

import torch
from torch import Tensor

from .._arithmetic import widest
from .._checks import check_integer, check_integers, check_rows
from .distances import group_means


def superclass_neighbours(embeddings: Tensor, superclasses: Tensor, max_k: int = 5) -> Tensor:
    """Returns for how many embeddings the mean of their superclass is among the k nearest superclass means.

    You want it before you use :class:`SuperClassXBN <pml_xbn.SuperClassXBN>`. Adapting rows to the moments of
    their superclass supposes that the embeddings of a superclass lie together (thesis A Study of Cross Batch
    Memory, Table 5.16, which lists the shares for k = 1 to 5).

    Args:
        embeddings: ``(n, d)``.
        superclasses: of every embedding, ``(n,)`` integers; with a map from label to superclass,
            ``superclasses[labels]``.
        max_k: the largest k.

    Returns:
        The shares ``(max_k,)`` for k = 1 … max_k, in [0, 1]. Of means at equal distances an embedding's own
        comes first. The shares are 0 without embeddings, and NaN where some of them are not finite.

    Raises:
        ValueError: shapes or dtypes do not fit, or ``max_k`` is below 1.

    Example:
        >>> rows = torch.tensor([[0.0], [1.0], [8.0], [9.0], [10.0]])
        >>> superclass_neighbours(rows, torch.tensor([0, 0, 0, 1, 1]), max_k=2)
        tensor([0.8000, 1.0000], dtype=torch.float64)
    """
    check_rows("embeddings", embeddings)
    check_integers("superclasses", superclasses, len(embeddings))
    check_integer("max_k", max_k, at_least=1)
    rows = widest(embeddings.detach())
    if len(rows) == 0:
        return rows.new_zeros(max_k)
    rows = rows - rows.mean(dim=0)
    means, position, _ = group_means(rows, superclasses)
    squared = torch.cdist(rows, means).square()
    own = squared.gather(1, position.unsqueeze(1))
    rounding = 64 * torch.finfo(rows.dtype).eps * rows.square().sum(dim=1).max()
    num_nearer = (squared < own - rounding).sum(dim=1)
    k = torch.arange(1, max_k + 1, device=rows.device)
    shares = (num_nearer.unsqueeze(1) < k).to(rows.dtype).mean(dim=0)
    return torch.where(own.isfinite().all(), shares, torch.nan)
