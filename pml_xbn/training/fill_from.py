"""A memory that begins full, with rows of a model that has warmed up."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..losses import AdaptiveCrossBatchMemory

_ITEMS = "(images, labels) or (images, labels, sample_ids), all of them tensors"


@torch.no_grad()
def fill_from(
    memory: AdaptiveCrossBatchMemory, loader: Iterable[Any], model: Callable[[Tensor], Tensor]
) -> int:
    """Fills a memory with embeddings of training images (Cross-Batch Memory, §3.3).

    The model embeds them in the mode that it is in. Leave it in training mode, and let the loader give
    shuffled batches of the size of training, with its augmentation: then rows are made like those that
    follow. With ``ClassBatches`` give it a loader with another ``seed``: the training loader's next batches
    would be the ones that are stored. In training mode batch normalization updates its running statistics,
    as it does in training.

    On many ranks that share rows all call it, with equally many batches. Give each
    ``islice(loader, memory_size // batch_size)``, with the batch of all ranks: all together fill it once.

    All images are embedded before the first row is stored: an error of the loader or of the model leaves the
    memory as it was. So for a moment there is a second copy of the rows, in the model's dtype. Then
    ``fill_memory`` stores one batch after the other; what it refuses, such as NaN, leaves those before it.

    With a warm-up call it after the last of the ``warmup`` calls. Rows that are stored before are stale when
    the memory begins, and a warning says so.

    Args:
        memory: whose rows are replaced, the oldest first. No loss is computed and no row is adapted.
        loader: gives ``(images, labels)``, or ``(images, labels, sample_ids)`` where the training steps pass
            ``sample_ids`` too, tensors on any device.
        model: returns embeddings ``(b, d)``. A module gets images on the device of its first parameter,
            another function on that of the memory.

    Returns:
        How many images this rank has stored: ``memory_size``, or as many as there were. An image whose
        ``sample_ids`` comes twice is one row. A batch that ``nonfinite="skip"`` leaves out does not count,
        and leaves the memory that much short.

    Raises:
        TypeError: PML's own ``CrossBatchMemory``, a loader that gives something else, or a model that does.
        ValueError: labels or embeddings that do not fit the memory or each other, or a loader without a
            batch.

    Example:
        >>> from pytorch_metric_learning.losses import SupConLoss
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from pml_xbn import XBNWrapper
        >>> images, labels, model = torch.randn(96, 8), torch.arange(96) % 48, nn.Linear(8, 4)
        >>> loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
        >>> loss_fn = XBNWrapper(SupConLoss(), embedding_size=4, memory_size=80, warmup=len(loader))
        >>> for step, (batch, batch_labels) in enumerate([*loader, *loader]):
        ...     if step == loss_fn.warmup:
        ...         stored = fill_from(loss_fn, loader, model)
        ...     loss = loss_fn(model(batch), batch_labels)
        >>> stored, loss_fn.has_been_filled
        (80, True)
    """
    if not hasattr(memory, "fill_memory"):
        raise TypeError(
            f"memory is a {type(memory).__name__}, which has no fill_memory: pass an "
            "AdaptiveCrossBatchMemory, which is PML's memory where it has no hooks, or one of its subclasses"
        )
    calls_left = memory.warmup - memory.num_calls
    if calls_left > 0:
        warnings.warn(
            f"fill_from stores rows while {calls_left} of {memory.warmup} calls of the warm-up are left, "
            "after which they are stale: call it when the warm-up is over",
            stacklevel=3,  # past the decorator
        )
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    device = memory.queue.rows.device if first is None else first.device
    batches: list[list[Tensor]] = []
    num_images = 0
    for images, *others in _checked(loader):
        # A model may use the tensor that it returns again.
        values = [model(images.to(device)), *(x.to(device) for x in others)]
        left, size = memory.memory_size - num_images, len(others[0])
        batches.append([x[:left].clone() if len(x) == size else x for x in values])
        num_images += min(left, size)
        if num_images == memory.memory_size:
            break
    if not num_images:
        raise ValueError(f"loader gives no batch: pass one that gives {_ITEMS}")
    # They are checked here, so that all ranks learn of an error on one.
    return sum(len(batch[1]) for batch in batches if memory._fill(*batch))


def _checked(loader: Iterable[Any]) -> Iterator[tuple[Tensor, ...]]:
    """Yields what the loader gives, or raises TypeError where these are no tensors, or another number."""
    length = None
    for item in loader:
        if not isinstance(item, (tuple, list)):
            raise TypeError(f"loader gives a {type(item).__name__}: pass one that gives {_ITEMS}")
        if len(item) not in (2, 3) or not all(isinstance(values, Tensor) for values in item):
            kinds = ", ".join(type(values).__name__ for values in item)
            raise TypeError(
                f"loader gives ({kinds}): pass one that gives {_ITEMS}, or embed the samples yourself and "
                "call fill_memory"
            )
        if item[1].ndim == 0:
            raise TypeError("loader gives one image at a time: pass a loader of batches")
        length = length or len(item)
        if len(item) != length:
            raise TypeError(
                f"loader gives {length} tensors first and {len(item)} later: pass one kind of item"
            )
        yield tuple(item)
