"""A batch that goes through the model in parts, and through the loss as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from .._number_checks import check_integer


class GradCache(nn.Module):
    """Embeds a large batch in parts, and needs the memory of one part for activations.

    The gradient is that of the whole batch, with any loss, any miner and any memory, since the loss is called
    once, outside, on the embeddings of all parts: that is what GradCache computes
    (https://arxiv.org/abs/2101.06983). Every part is embedded twice: at first nothing is kept of it but its
    embeddings, and in the backward pass, one part after the other, it is embedded again for its gradient. So
    a step takes about as long as four forward passes instead of three.

    ``torch.utils.checkpoint`` does this, with the random numbers and the autocast of the first time, so
    dropout drops the same twice. Buffers are those of the first time, too, and change once: running
    statistics of batch normalization are updated as often as there are parts.

    Batch normalization in training mode sees a part, not the batch. In a model that is frozen
    (:func:`freeze_batch_norm`) or has none, the gradient is that of a plain step with the whole batch.

    On many ranks wrap it: ``DistributedDataParallel(GradCache(model, 64))``. Where gradients are disabled
    the parts are embedded once.

    Args:
        model: takes batches, and returns embeddings ``(b, d)``.
        part_size: images in a part, as many as fit; the last part may be smaller.

    Attributes:
        module: the model. Names in ``state_dict()`` begin with ``module.``, as with
            ``DistributedDataParallel``.

    Raises:
        ValueError: a ``part_size`` below 1.

    Example:
        >>> from pytorch_metric_learning.losses import SupConLoss
        >>> from pml_xbn import XBNWrapper
        >>> model = GradCache(nn.Linear(8, 4), part_size=16)
        >>> loss_fn = XBNWrapper(SupConLoss(), embedding_size=4, memory_size=256)
        >>> images, labels = torch.randn(64, 8), torch.arange(64) % 8
        >>> loss_fn(model(images), labels).backward()
    """

    def __init__(self, model: nn.Module, part_size: int) -> None:
        super().__init__()
        check_integer("part_size", part_size, at_least=1)
        self.module, self.part_size = model, part_size

    def extra_repr(self) -> str:
        return f"part_size={self.part_size}"

    def forward(self, *inputs: Any, **named_inputs: Any) -> Tensor:
        """Returns the embeddings of the batch, ``(b, d)``.

        Args:
            inputs: what the model takes. Tensors, and those in dictionaries, as tokenizers give, are split
                along their first dimension; all else goes to every part as it is.
            named_inputs: likewise, by name.

        Raises:
            ValueError: no tensor to split, or tensors of different lengths.
            TypeError: the model returns something else than a tensor.
        """
        size = _batch_size([*inputs, *named_inputs.values()])
        embeddings = []
        for first in range(0, max(size, 1), self.part_size):
            rows = slice(first, first + self.part_size)
            part = [_part(value, rows) for value in inputs]
            named_part = {name: _part(value, rows) for name, value in named_inputs.items()}
            embeddings.append(self._embed(part, named_part))
        return torch.cat(embeddings)

    def _embed(self, inputs: list[Any], named_inputs: dict[str, Any]) -> Tensor:
        if not torch.is_grad_enabled():
            return _tensor(self.module(*inputs, **named_inputs))
        buffers: dict[str, Tensor] = {}

        def embed(*_: Tensor) -> Tensor:
            """Embeds the part; the second time with copies of the buffers as they were at the first."""
            if buffers:
                copies = {name: buffer.clone() for name, buffer in buffers.items()}
                return _tensor(functional_call(self.module, copies, tuple(inputs), named_inputs))
            buffers.update({name: buffer.clone() for name, buffer in self.module.named_buffers()})
            return _tensor(self.module(*inputs, **named_inputs))

        # It keeps the random state of all devices that its arguments are on.
        on_devices = [*_tensors_to_split([*inputs, *named_inputs.values()]), *self.module.parameters()]
        embeddings: Tensor = checkpoint(embed, *on_devices, use_reentrant=False)
        return embeddings


def _batch_size(values: list[Any]) -> int:
    """Returns the number of images."""
    sizes = {len(tensor) for tensor in _tensors_to_split(values)}
    if len(sizes) != 1:
        found = f"tensors of {sorted(sizes)} rows" if sizes else "no tensor"
        raise ValueError(f"the model is given {found}: pass tensors of one batch, one row an image")
    return sizes.pop()


def _tensors_to_split(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Mapping):
            yield from _tensors_to_split(value.values())
        elif isinstance(value, Tensor) and value.ndim > 0:
            yield value


def _part(value: Any, rows: slice) -> Any:
    if isinstance(value, Mapping):
        return {name: _part(one, rows) for name, one in value.items()}
    return value[rows] if isinstance(value, Tensor) and value.ndim > 0 else value


def _tensor(embeddings: Any) -> Tensor:
    if not isinstance(embeddings, Tensor):
        raise TypeError(
            f"the model returns a {type(embeddings).__name__}: pass one that returns embeddings, (b, d)"
        )
    return embeddings
