"""The embedding network: four convolution blocks and a linear layer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(8, channels),
}
WIDTHS = (16, 32, 64, 64)


class GlyphNet(nn.Module):
    """Maps images, by default (B, 1, 32, 32), to (B, ``embedding_size``) embeddings of any length.

    There is no dropout: a step is a function of state and batch alone. The side is a multiple of 16.
    """

    def __init__(self, embedding_size: int, norm: str = "batch", channels: int = 1, side: int = 32) -> None:
        super().__init__()
        widths = (channels, *WIDTHS)
        self.blocks = nn.Sequential(
            *(_block(before, after, norm) for before, after in zip(widths, WIDTHS, strict=False))
        )
        self.embedding = nn.Linear(WIDTHS[-1] * (side // 2 ** len(WIDTHS)) ** 2, embedding_size)
        # Twice as fast on CPUs for layers as narrow as these.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]

    def forward(self, images: Tensor) -> Tensor:
        return self.embedding(self.blocks(images).flatten(1))


def _block(channels_in: int, channels_out: int, norm: str) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        NORMS[norm](channels_out),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )
