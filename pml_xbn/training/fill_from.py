"""A memory that begins full, with rows of a model that has warmed up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..losses import AdaptiveCrossBatchMemory


@torch.no_grad()
def fill_from(memory: AdaptiveCrossBatchMemory, loader: Iterable[Any], model: nn.Module) -> int:
    """Fills a memory with embeddings of training images (Cross-Batch Memory, §3.3).

    The model embeds them in the mode that it is in. Leave it in training mode, and let the loader give
    shuffled batches of the size of training, with its augmentation: then rows are made like those that
    follow. With ``ClassBatches`` give it a loader with another ``seed``: the training loader's next batches
    would be the ones that are stored. In training mode batch normalization updates its running statistics,
    as it does in training.

    On many ranks that share rows all call it, with equally many batches. Give each
    ``islice(loader, memory_size // batch_size)``, with the batch of all ranks: all together fill it once.

    Args:
        memory: whose rows are replaced, the oldest first. No loss is computed and no row is adapted.
        loader: gives ``(images, labels)``, on any device.
        model: returns embeddings ``(b, d)``.

    Returns:
        How many rows this rank has stored: ``memory_size``, or as many as there were images.

    Raises:
        TypeError: PML's own ``CrossBatchMemory``.
        ValueError: labels or embeddings that do not fit the memory, or a loader without a batch.

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
    first = next(model.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    stored = 0
    for images, labels in loader:
        left = memory.memory_size - stored
        embeddings: Tensor = model(images.to(device))
        memory.fill_memory(embeddings[:left], labels.to(device)[:left])
        stored += min(left, len(labels))
        if stored == memory.memory_size:
            break
    if not stored:
        raise ValueError("loader gives no batch: pass one that gives (images, labels) of training images")
    return stored
