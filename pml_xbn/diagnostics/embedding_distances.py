"""How far embeddings are from each other and from the mean of their class."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._arithmetic import widest
from .._checks import check_integers, check_rows
from .distances import group_means

_CHUNK = 1024  # rows compared with all others at once


class EmbeddingDistances(NamedTuple):
    """Mean distances in the units of the embeddings, 0-dimensional each."""

    between_embeddings: Tensor
    to_class_mean: Tensor


def embedding_distances(embeddings: Tensor, labels: Tensor) -> EmbeddingDistances:
    """Returns the mean Euclidean distance between embeddings, and from an embedding to the mean of its class.

    The first grows as the embeddings separate, and the second falls as their classes become compact (thesis
    A Study of Cross Batch Memory, §5.4). The first mean is over all pairs of different rows, whatever their
    classes. The second is over all rows, so a class of a single row counts with distance 0.

    Args:
        embeddings: ``(n, d)``; the number of distances is n².
        labels: ``(n,)`` integers.

    Returns:
        Both means; 0 where there are fewer than two rows.

    Raises:
        ValueError: shapes or dtypes do not fit.

    Example:
        >>> rows = torch.tensor([[0.0], [2.0], [7.0]])
        >>> [round(mean.item(), 2) for mean in embedding_distances(rows, torch.tensor([0, 0, 1]))]
        [4.67, 0.67]
    """
    check_rows("embeddings", embeddings)
    check_integers("labels", labels, len(embeddings))
    rows = widest(embeddings.detach())
    if len(rows) < 2:
        return EmbeddingDistances(*rows.new_zeros(2))
    rows = rows - rows.mean(dim=0)  # cdist loses digits to a common offset
    means, position, _ = group_means(rows, labels)
    total = sum((_off_diagonal(rows, start) for start in range(0, len(rows), _CHUNK)), rows.new_zeros(()))
    return EmbeddingDistances(
        between_embeddings=total / (len(rows) * (len(rows) - 1)),
        to_class_mean=(rows - means[position]).norm(dim=1).mean(),
    )


def _off_diagonal(rows: Tensor, start: int) -> Tensor:
    """Returns the sum of the distances from a chunk of rows to all others."""
    mat = torch.cdist(rows[start : start + _CHUNK], rows)
    mat.diagonal(offset=start).zero_()  # a row's distance to itself, which rounding may leave above 0
    return mat.sum()
