"""A batch that goes through the model in parts, and through the loss as a whole."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from .._buffers import Buffers, buffers_as, copied_buffers
from .._checks import check_integer
from ._parts import batch_size, joined, own_part, rebuilt, tensors_of


class GradCache(nn.Module):
    """Embeds a large batch in parts, and needs the memory of one part for activations.

    The gradient is that of the whole batch, with any loss, any miner and any memory, since the loss is called
    once, outside, on the embeddings of all parts: that is what GradCache computes
    (https://arxiv.org/abs/2101.06983). Every part is embedded twice: at first nothing is kept of it but its
    embeddings, and in the backward pass, one part after the other, it is embedded again for its gradient. So
    a step takes about as long as four forward passes instead of three.

    ``torch.utils.checkpoint`` does this, with the random numbers and the autocast of the first time, so
    dropout drops the same twice. Buffers are those of the first time, too, and change once: running
    statistics of batch normalization are updated as often as there are parts. Each time the model gets
    tensors and dictionaries of its own, so it may write to them, and yours stay as they are. What a model
    keeps elsewhere than in buffers, such as a counter or a generator of random numbers of its own, it sees as
    it is the second time: let nothing that its embeddings depend on be there.

    Batch normalization in training mode sees a part, not the batch. In a model that is frozen
    (:func:`freeze_batch_norm`) or has none, the gradient is that of a plain step with the whole batch.

    On many ranks wrap it: ``DistributedDataParallel(GradCache(model, 64))``. Where gradients are disabled
    the parts are embedded once.

    Args:
        model: takes batches, and returns embeddings ``(b, d)``, or a dictionary, list, tuple or dataclass of
            tensors with a row an image. All that it returns is kept: let it return what the loss takes, and
            not the embeddings of every token. It may be compiled or scripted.
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

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Returns what the model returns, such as the embeddings of the batch, ``(b, d)``.

        Args:
            inputs: what the model takes. Tensors, and those in dictionaries, as tokenizers give, in lists,
                tuples and dataclasses, are split along their first dimension. Tensors of one element or row,
                and all else, belong to the whole batch, and go to every part.
            named_inputs: likewise, by name.

        Raises:
            ValueError: no tensor to split, or tensors of different lengths; the model has lazy layers that
                have not seen a batch, or returns tensors without a row an image.
            TypeError: the model returns something else than tensors, and not the same of all parts.
            RuntimeError: in the backward pass, if you have written to the batch since.
        """
        whole = (inputs, named_inputs)
        size = batch_size(whole)
        # Of nearly one size, as batch normalization cannot train on a last part of one image.
        num_parts = max(1, -(-size // self.part_size))
        ends = [size * number // num_parts for number in range(num_parts + 1)]
        slices = [slice(*both) for both in pairwise(ends)]
        whole = rebuilt(lambda leaf: leaf, whole)  # whose dictionaries the caller may change
        parts = [self._embed(whole, rows, size) for rows in slices]
        return joined(parts, [len(range(size)[rows]) for rows in slices])

    def _embed(self, batch: Any, rows: slice, size: int) -> Any:
        if not torch.is_grad_enabled():
            return self._pass(batch, rows, size)
        buffers: Buffers = []

        def embed(*_: Tensor) -> Any:
            """Embeds the part; the second time with copies of the buffers as they were at the first."""
            if not buffers:
                buffers.extend(copied_buffers(self.module))
                return self._pass(batch, rows, size)
            with buffers_as(buffers):
                return self._pass(batch, rows, size)

        # It keeps the random state of all devices that its arguments are on, and checks that nobody has
        # written to them since.
        on_devices = [*tensors_of(batch), *self.module.parameters()]
        with set_checkpoint_early_stop(not _is_scripted(self.module)):
            return checkpoint(embed, *on_devices, use_reentrant=False)

    def _pass(self, batch: Any, rows: slice, size: int) -> Any:
        """Returns what the model returns of a part that it gets for itself."""
        inputs, named_inputs = own_part(batch, rows, size)
        # What TorchScript optimizes after the first pass would keep other tensors for the gradient in the
        # second, and an exception of ours does not come through it that stops when all of them are there.
        as_written = torch.jit.optimized_execution(False) if _is_scripted(self.module) else nullcontext()  # type: ignore[attr-defined]
        with as_written:
            return self.module(*inputs, **named_inputs)


def _is_scripted(model: nn.Module) -> bool:
    return any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
