"""How far the rows of a memory are from fresh embeddings of their images."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import check_integers, check_rows
from .distances import distance_per_row, mean_and_maximum


class Staleness(NamedTuple):
    """Distances of rows to the fresh embeddings of their images, in the units of the embeddings.

    Attributes:
        mean: over all rows, 0-dimensional.
        maximum: over all rows, 0-dimensional.
        ages: the g ages that occur, ascending, ``(g,)`` int64.
        mean_by_age: over the rows of each age, ``(g,)``.
        maximum_by_age: over the rows of each age, ``(g,)``.
        rows_by_age: number of rows of each age, ``(g,)`` int64.
    """

    mean: Tensor
    maximum: Tensor
    ages: Tensor
    mean_by_age: Tensor
    maximum_by_age: Tensor
    rows_by_age: Tensor


class AdaptedStaleness(NamedTuple):
    """Staleness of the same rows as they were stored and as the loss saw them."""

    before: Staleness
    after: Staleness


def staleness(rows: Tensor, fresh: Tensor, ages: Tensor) -> Staleness:
    r"""Returns the staleness of memory rows, overall and by their age.

    .. math:: \| r_i - f(x_i; \theta^k) \|_2

    with the row :math:`r_i` of the image :math:`x_i`, and the model with its current weights
    :math:`\theta^k`. For a row that nothing has adapted this is the feature drift over its age.
    :meth:`RowTracker.staleness` calls it with the rows of a memory.

    Args:
        rows: of the memory, ``(n, d)``.
        fresh: embeddings of the same images by the model as it is, ``(n, d)``.
        ages: steps since each row was stored, ``(n,)`` integers.

    Returns:
        See :class:`Staleness`. Without rows the numbers are 0 and the tensors empty.

    Raises:
        ValueError: shapes or dtypes do not fit.

    Example:
        >>> rows = torch.tensor([[0.0], [0.0], [0.0]])
        >>> result = staleness(rows, torch.tensor([[1.0], [5.0], [3.0]]), torch.tensor([1, 2, 2]))
        >>> result.mean, result.ages, result.mean_by_age
        (tensor(3.), tensor([1, 2]), tensor([1., 4.]))
    """
    check_rows("rows", rows)
    check_rows("fresh", fresh, like=rows)
    check_integers("ages", ages, len(rows))
    distances = distance_per_row(rows.detach(), fresh.detach())
    groups, position, counts = torch.unique(
        ages.to(torch.int64), sorted=True, return_inverse=True, return_counts=True
    )
    zeros = distances.new_zeros(len(groups))
    return Staleness(
        *mean_and_maximum(distances),
        ages=groups,
        mean_by_age=zeros.index_add(0, position, distances) / counts,
        maximum_by_age=zeros.scatter_reduce(0, position, distances, "amax"),
        rows_by_age=counts,
    )
