"""How many pairs train the network, and whether they come from the batch or from memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import check_integers, check_mask, check_rows


class ValidPairs(NamedTuple):
    """Numbers of pairs of an anchor and a row, 0-dimensional integers each."""

    positives_from_batch: Tensor
    positives_from_memory: Tensor
    negatives_from_batch: Tensor
    negatives_from_memory: Tensor


def valid_pairs(
    pair_gradient: Tensor, anchor_labels: Tensor, row_labels: Tensor, is_from_batch: Tensor
) -> ValidPairs:
    """Counts the valid pairs of a loss by where their second embedding comes from.

    A pair is valid if its gradient is not zero (Cross-Batch Memory, §3.3 and Fig. 4, for negatives). For
    ``ContrastiveLoss`` these are the pairs that violate its margin. With a miner they are the pairs that the
    miner has chosen and to which the loss gives a weight. A pair of two batch members counts once for each of
    them that is an anchor, as it does in the loss.

    Args:
        pair_gradient: of the loss with respect to the distance or similarity of every anchor to every row,
            ``(a, n)``; see :class:`WatchedLoss`.
        anchor_labels: ``(a,)`` integers.
        row_labels: ``(n,)`` integers.
        is_from_batch: ``(n,)`` bool, True where a row is of the batch itself, False where it is older.

    Returns:
        The numbers of positive (equal labels) and negative pairs.

    Raises:
        ValueError: shapes or dtypes do not fit.

    Example:
        >>> gradient = torch.tensor([[0.0, 0.5, -0.1, 0.0], [0.2, 0.0, -0.3, 0.0]])
        >>> labels, from_batch = torch.tensor([7, 7, 8, 8]), torch.tensor([True, True, False, False])
        >>> [int(count) for count in valid_pairs(gradient, labels[:2], labels, from_batch)]
        [2, 0, 0, 2]
    """
    check_rows("pair_gradient", pair_gradient)
    num_anchors, num_rows = pair_gradient.shape
    check_integers("anchor_labels", anchor_labels, num_anchors)
    check_integers("row_labels", row_labels, num_rows)
    check_mask("is_from_batch", is_from_batch, num_rows)
    is_valid = pair_gradient != 0
    is_positive = anchor_labels.unsqueeze(1) == row_labels
    return ValidPairs(
        *(
            torch.count_nonzero(is_valid & sign & source)
            for sign in (is_positive, ~is_positive)
            for source in (is_from_batch, ~is_from_batch)
        )
    )
