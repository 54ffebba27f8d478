"""Whether the loss moves all anchors alike, away from a memory that lags behind."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._arithmetic import at_least_float32, widest
from .._tensor_checks import check_rows


class CommonModePush(NamedTuple):
    r"""What all anchors have in common of a gradient, 0-dimensional each.

    Attributes:
        push: :math:`\bar g \cdot \hat\delta`, in units of the gradient. Where it is positive, a step of
            gradient descent moves the anchors' mean away from the memory's, further along the drift.
        share: :math:`\|\bar g\| / \mathrm{rms}(g_i)`, from 0 (the anchors' gradients cancel) to 1 (they
            are all the same).
        cosine: of :math:`\bar g` and :math:`\hat\delta`, from -1 (towards the memory) to 1 (away from it).
        displacement: :math:`\|\delta\|`, in units of the embeddings.
    """

    push: Tensor
    share: Tensor
    cosine: Tensor
    displacement: Tensor


def common_mode_push(gradient: Tensor, anchors: Tensor, memory: Tensor) -> CommonModePush:
    r"""Returns the part of the loss's gradient that moves all anchors alike, along the memory's displacement.

    With the gradient :math:`g_i = \partial L / \partial z_i` of the loss on every anchor,

    .. math::
        \bar g = \frac{1}{a} \sum_i g_i, \qquad
        \delta = E[\text{memory}] - E[\text{anchors}], \qquad
        \hat\delta = \delta / \|\delta\|.

    A memory that lags behind the model by a drift all embeddings share is displaced by :math:`\delta`. A
    loss that pushes its anchors away from the negatives in there then pushes all of them further along that
    drift, and the drift feeds itself. The anchors descend along :math:`-\bar g`, so
    :math:`\bar g \cdot \hat\delta > 0` says that they move away from the memory.

    Gradient, anchors and memory are those that the loss is given. If it normalises them (as PML's distances
    do unless told otherwise), the gradient on an anchor is orthogonal to it, while the displacement of
    means also holds what their lengths differ by: train on embeddings of unit length, or normalise them
    before the loss, if that is to be left out.

    :math:`\hat\delta` has a direction however short :math:`\delta` is, so read push and cosine together with
    ``displacement``. Adaptation to the batch's mean, as XBN's, gives every batch in memory that mean. Whole
    batches keep it when the oldest of them is replaced, so where the batch size divides ``memory_size`` the
    displacement is 0, and push and cosine are. Where it does not, the oldest batch is cut, and what is left
    of it moves the memory's mean by a small distance in a random direction.

    Args:
        gradient: of the loss with respect to the anchors' embeddings, ``(a, d)``. The whole loss's, or the
            memory's part of it: see :class:`WatchedLoss`.
        anchors: ``(a, d)``.
        memory: rows of earlier batches, as the loss saw them, ``(n, d)``.

    Returns:
        Push, share and cosine are 0 where the gradient is, push and cosine also where there is no
        displacement, as without any memory.

    Raises:
        ValueError: shapes that do not fit.

    Example:
        >>> anchors, memory = torch.tensor([[2.0, 1.0], [2.0, -1.0]]), torch.zeros(3, 2)
        >>> gradient = torch.tensor([[-1.0, 1.0], [-1.0, -1.0]])  # a step down it adds to the first component
        >>> common_mode_push(gradient, anchors, memory)
        CommonModePush(push=tensor(1.), share=tensor(0.7071), cosine=tensor(1.), displacement=tensor(2.))
    """
    check_rows("anchors", anchors)
    check_rows("gradient", gradient, like=anchors)
    check_rows("memory", memory, width=anchors.shape[1])
    no_push = at_least_float32(gradient.new_zeros(()))
    if len(anchors) == 0:
        return CommonModePush(no_push, no_push, no_push, no_push)
    # Scaled by its largest number, so that the squares of a tiny gradient do not vanish.
    largest = widest(gradient.detach()).abs().max()
    gradients = _over(widest(gradient.detach()), largest)
    common, rms = gradients.mean(dim=0), gradients.square().sum(dim=1).mean().sqrt()
    displacement = _displacement(anchors.detach(), memory.detach())
    along = common @ _over(displacement, displacement.norm())
    measured = CommonModePush(
        push=largest * along,
        share=_over(common.norm(), rms),
        cosine=_over(along, common.norm()).clamp(-1, 1),
        displacement=displacement.norm(),
    )
    return CommonModePush(*(value.to(no_push.dtype) for value in measured))


def _displacement(anchors: Tensor, memory: Tensor) -> Tensor:
    """Returns the way from the anchors' mean to the memory's, and 0 where all that differs is rounding."""
    rows = widest(anchors)
    if len(memory) == 0:
        return torch.zeros_like(rows[0])
    displacement = widest(memory).mean(dim=0) - rows.mean(dim=0)
    # Numbers in half precision are what they are; their means are those of float64.
    eps = max(torch.finfo(at_least_float32(x[:0]).dtype).eps for x in (anchors, memory))
    rounding = 8 * eps * rows.square().sum(dim=1).mean().sqrt()
    return torch.where(displacement.norm() <= rounding, 0.0, displacement)


def _over(value: Tensor, size: Tensor) -> Tensor:
    """Returns ``value / size``, and 0 where the size is."""
    return torch.where(size == 0, 0.0, value / size)
