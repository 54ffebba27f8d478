"""The embedding network: four convolution blocks and a linear layer."""

import torch
from torch import Tensor, nn

WIDTHS = (16, 32, 64, 64)


class GlyphNet(nn.Module):
    """Maps (B, 1, 32, 32) images to (B, ``embedding_size``) embeddings of any length.

    There is no dropout: a step is a function of state and batch alone.
    """

    def __init__(self, embedding_size: int) -> None:
        super().__init__()
        channels = (1, *WIDTHS)
        self.blocks = nn.Sequential(
            *(_block(before, after) for before, after in zip(channels, WIDTHS, strict=False))
        )
        self.embedding = nn.Linear(WIDTHS[-1] * 4, embedding_size)
        # Twice as fast on CPUs for layers as narrow as these.
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(self.blocks(images).flatten(1))
        return embeddings


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )
