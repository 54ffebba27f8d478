"""How well the classes are separated."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._arithmetic import widest
from .._checks import check_integers, check_rows
from .distances import group_means


class ClassSeparability(NamedTuple):
    """The traces of the scatter matrices between and within classes, and their ratio, 0-dimensional each."""

    criterion: Tensor
    between: Tensor
    within: Tensor


def class_separability(embeddings: Tensor, labels: Tensor) -> ClassSeparability:
    r"""Returns the class separability criterion, which is large where classes are compact and far apart.

    .. math::
        S_b &= \sum_i P_i (\mu_i - \mu_0)(\mu_i - \mu_0)^T \\
        S_w &= \sum_i P_i E[(x_i - \mu_i)(x_i - \mu_i)^T] \\
        CSC &= \mathrm{trace}\, S_b / \mathrm{trace}\, S_w

    (Stop-Gradient Softmax Loss, Eq. 9.) :math:`P_i` is the fraction of rows of class i and :math:`\mu_0`
    the mean of all rows.

    Args:
        embeddings: ``(n, d)``.
        labels: ``(n,)`` integers.

    Returns:
        The criterion, which has no unit, and both traces, in squared units of the embeddings. Without any
        spread within the classes the criterion is infinite. If there is none between them either, it is 0.

    Raises:
        ValueError: shapes or dtypes that do not fit.

    Example:
        >>> rows = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
        >>> class_separability(rows, torch.tensor([0, 0, 1, 1])).criterion
        tensor(25., dtype=torch.float64)
    """
    check_rows("embeddings", embeddings)
    check_integers("labels", labels, len(embeddings))
    rows = widest(embeddings.detach())
    if len(rows) == 0:
        return ClassSeparability(*rows.new_zeros(3))
    eps, size = torch.finfo(rows.dtype).eps, rows.square().sum(dim=1).mean()
    rows = rows - rows.mean(dim=0)  # so that the traces lose no digits to a mean far from zero
    means, position, counts = group_means(rows, labels)
    # Scatter as small as the rounding errors of a sum counts as zero: a ratio of two could be any number.
    rounding = (8 * eps * counts.max()) ** 2 * size
    between = (means.square().sum(dim=1) * counts).sum() / len(rows)
    within = (rows - means[position]).square().sum() / len(rows)
    between, within = (torch.where(trace <= rounding, 0.0, trace) for trace in (between, within))
    return ClassSeparability(torch.where(between == 0, 0.0, between / within), between, within)
