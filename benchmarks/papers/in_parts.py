"""Gradient accumulation under which the loss and the memory see the whole batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint


class InParts(nn.Module):
    """Embeds images (B, 3, H, W) in equal parts, and has the activations of one part at a time.

    They are dropped after the first pass. The gradient of the loss by all embeddings is back-propagated part
    by part, each of which is embedded again for it (gradient caching: Gao et al. 2021), with the random
    numbers and the buffers of the first pass.
    """

    def __init__(self, model: nn.Module, parts: int) -> None:
        super().__init__()
        self.model, self.parts = model, parts

    def forward(self, images: Tensor) -> Tensor:
        if self.parts == 1:
            return self.model(images)
        return torch.cat([self._embed(part) for part in images.chunk(self.parts)])

    def _embed(self, part: Tensor) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        passes = iter((self.model, lambda images: functional_call(self.model, buffers, (images,))))
        return checkpoint(lambda images: next(passes)(images), part, use_reentrant=False)
