"""Whether the loss moves all anchors alike, away from a memory that lags behind."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._arithmetic import at_least_float32, widest
from .._checks import check_rows


class CommonModePush(NamedTuple):
    r"""The part of a gradient that all anchors have in common, 0-dimensional each.

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

    You want it when training with a memory ends badly and you ask whether staleness is the cause. Where all
    embeddings share a drift, a memory that lags behind the model is displaced by :math:`\delta`. A loss that
    pushes its anchors away from the negatives in such a memory pushes all of them further along the drift,
    and the drift feeds itself. The anchors descend along :math:`-\bar g`, so they move away from the memory
    where :math:`\bar g \cdot \hat\delta > 0`.

    Pass the gradient, anchors and memory that the loss is given. If the loss normalises them (as PML's
    distances do by default), the gradient on an anchor is orthogonal to the anchor, while the displacement of
    the means also holds differences of length. To leave these out, train on embeddings of unit length, or
    normalise them before the loss.

    :math:`\hat\delta` has a direction even where :math:`\delta` is tiny, so read push and cosine together
    with ``displacement``. XBN gives the memory the batch's mean. Where the batch size divides
    ``memory_size``, whole batches are replaced, and the displacement, push and cosine are 0. Where it does
    not, a part of the oldest batch stays, and moves the memory's mean by a small distance in a random
    direction.

    Args:
        gradient: of the loss with respect to the anchors' embeddings, ``(a, d)``: that of the whole loss, or
            the part of it that comes from the memory. :class:`WatchedLoss` has both.
        anchors: ``(a, d)``.
        memory: rows of earlier batches, as the loss saw them, ``(n, d)``.

    Returns:
        See :class:`CommonModePush`. Push, share and cosine are 0 where the gradient is 0. Push and cosine are
        also 0 where there is no displacement, for example without any memory.

    Raises:
        ValueError: the shapes do not fit each other.

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
    """Returns the vector from the anchors' mean to the memory's, and 0 where only rounding differs."""
    rows = widest(anchors)
    if len(memory) == 0:
        return torch.zeros_like(rows[0])
    displacement = widest(memory).mean(dim=0) - rows.mean(dim=0)
    # Numbers in half precision are taken as exact: their means are computed in float64.
    eps = max(torch.finfo(at_least_float32(x[:0]).dtype).eps for x in (anchors, memory))
    rounding = 8 * eps * rows.square().sum(dim=1).mean().sqrt()
    return torch.where(displacement.norm() <= rounding, 0.0, displacement)


def _over(value: Tensor, size: Tensor) -> Tensor:
    """Returns ``value / size``, and 0 where the size is."""
    return torch.where(size == 0, 0.0, value / size)
