"""How much an image's embedding depends on the other images of its batch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize as unit_length

from .._arithmetic import at_least_float32, widest
from .._buffers import buffers_as, copied_buffers
from .._checks import check_dense, check_integer, check_rows
from .random_state import random_state_kept

_LARGE_SHARE = 0.2  # between batches of 64 and of 16 of the study: docs/diagnostics.md has its figures


class BatchNoise(NamedTuple):
    r"""How much of the spread of embeddings is noise of the batch, 0-dimensional each.

    Attributes:
        share: ``noise / spread``, from 0 (no embedding depends on its batch) to about 1 (two embeddings of
            one image are as far from each other as those of two images).
        noise: half of the mean squared distance between two embeddings of one image in two batches.
        spread: half of the mean squared distance between embeddings of two images in two batches.
        distance: :math:`\sqrt{2 \cdot noise}`, in units of the embeddings. Even a row that was stored a
            moment ago is as far as this from a fresh embedding of its image, because that one comes from
            another batch. Compare it with ``Staleness.mean``.
    """

    share: Tensor
    noise: Tensor
    spread: Tensor
    distance: Tensor

    @property
    def is_large(self) -> bool:
        """Whether a fifth or more of the spread is noise, so that something should be done about it."""
        return float(self.share) >= _LARGE_SHARE

    def __str__(self) -> str:
        """Returns a line for a log: the share, and what to do if it is large."""
        found = f"{100 * float(self.share):.0f} % of the spread of embeddings is noise of the batch"
        if not self.is_large:
            return found
        return (
            f"{found}: freeze batch normalization (pml_xbn.training.freeze_batch_norm), take larger batches, "
            "or store rows of an evaluation pass"
        )


@torch.no_grad()
def batch_noise(
    model: nn.Module, images: Tensor, others: Tensor, *, num_parts: int = 4, normalize: bool = True
) -> BatchNoise:
    r"""Returns how much of the spread of embeddings is noise of the batch, such as batch normalization adds.

    You want it before you fine-tune with batches of 64 images or fewer. Batch normalization in training mode
    gives an image another embedding in every batch. A stored row keeps the noise of the batch that it came
    in with, as long as it is stored. Adaptation does not repair this, since rows of different batches have
    different noise.

    The batch is embedded as it is. Then each of its parts is embedded once more, among images of the other
    batch in place of the rest. With embeddings :math:`z_i` in the batch and :math:`z_i'` among the others,

    .. math::
        noise = \frac{1}{2} E \| z_i - z_i' \|^2, \qquad
        spread = \frac{1}{2} E \| z_i - z_j' \|^2 \quad (i \neq j),

    where each distance of the noise is divided by the fraction of images that were replaced for it. All
    passes draw the same random numbers, so dropout makes no difference between them.

    The call takes ``num_parts + 1`` forward passes. It changes nothing: images, buffers and random numbers
    stay as they were. (What the model itself counts elsewhere than in buffers counts these passes too.)

    Args:
        model: in training mode, as in a training step, and not wrapped in ``DistributedDataParallel``; it
            takes a tensor and returns embeddings ``(b, d)``. It may write to its input, and be scripted.
            Layers that are frozen (:func:`pml_xbn.training.freeze_batch_norm`) stay so.
        images: a batch as the model takes it, ``(b, ...)``, drawn and augmented as in training.
        others: another batch of the same shape.
        num_parts: into how many parts the batch is cut, from 2 to b (default 4). Neighbouring images stay
            together.
        normalize: whether embeddings are scaled to unit length first, as PML's distances do (default True).

    Returns:
        See :class:`BatchNoise`. ``print`` it for a line that also says what to do; for TensorBoard
        pass it to :func:`scalars`.

    Raises:
        ValueError: the model is in evaluation mode or has lazy layers that have not seen a batch, the batches
            differ in shape or have fewer images than parts, or the embeddings are not ``(b, d)``.

    Example:
        >>> from pml_xbn.training import freeze_batch_norm
        >>> model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
        >>> images, others = torch.randn(2, 16, 8).unbind()
        >>> bool(batch_noise(model, images, others).share > 0)
        True
        >>> freeze_batch_norm(model)
        1
        >>> print(batch_noise(model, images, others))
        0 % of the spread of embeddings is noise of the batch
    """
    check_dense("images", images, "a batch of images")
    check_dense("others", others, "another batch of images")
    check_integer("num_parts", num_parts, at_least=2)
    if images.shape != others.shape or images.ndim == 0:
        raise ValueError(
            f"images have shape {tuple(images.shape)} and others {tuple(others.shape)}: pass two batches of "
            "the same shape"
        )
    if len(images) < num_parts:
        raise ValueError(
            f"{len(images)} images for num_parts={num_parts}: pass a larger batch or fewer parts"
        )
    if not model.training:
        raise ValueError("model is in evaluation mode: call model.train(), as in a training step")
    indices = torch.arange(len(images), device=images.device)
    once = _embed(model, images, normalize)
    apart, replaced = torch.empty_like(once), once.new_empty(len(once))
    for part in indices.tensor_split(num_parts):
        replaced[part] = 1 - len(part) / len(images)
        around = others.index_copy(0, part, images[part])  # every image keeps its place, and its dropout
        apart[part] = _embed(model, around, normalize)[part]
    center = (once + apart).mean(dim=0) / 2  # to which products would lose digits
    once, apart = once - center, apart - center
    noise = ((once - apart).square().sum(dim=1) / replaced).mean() / 2
    spread = _half_squared_distance_of_two(once, apart)
    measured = BatchNoise(torch.where(spread > 0, noise / spread, 0.0), noise, spread, (2 * noise).sqrt())
    return BatchNoise(*(number.to(at_least_float32(images.new_zeros(0)).dtype) for number in measured))


def _half_squared_distance_of_two(rows: Tensor, others: Tensor) -> Tensor:
    """Returns half of the mean squared distance from a row to those of other images among the others."""
    size = len(rows)
    squares = size * (rows.square().sum() + others.square().sum())
    products = rows.sum(dim=0) @ others.sum(dim=0)
    of_pairs = squares - 2 * products - (rows - others).square().sum()
    return of_pairs.clamp_min(0) / (2 * size * (size - 1))


def _embed(model: nn.Module, images: Tensor, normalize: bool) -> Tensor:
    """Returns embeddings in the model's mode, in float64; buffers and random state stay as they are."""
    with random_state_kept([images, *model.parameters()]), buffers_as(copied_buffers(model)):
        embeddings: Tensor = model(images.clone())  # a model may write to its input
    check_rows("embeddings", embeddings)
    if len(embeddings) != len(images):
        raise ValueError(
            f"the model gives {len(embeddings)} embeddings of {len(images)} images: pass one that gives an "
            "embedding of every image"
        )
    rows = widest(embeddings)
    return unit_length(rows) if normalize else rows
