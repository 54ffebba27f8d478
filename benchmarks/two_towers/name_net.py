"""The tower of names: three convolutions over characters, and the largest value of each channel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

LENGTH = 80  # characters; longer names are cut
_ALPHABET = " -0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WIDTHS = (32, 64, 64, 128)  # of characters, and behind each block


def encode(names: Sequence[str]) -> Tensor:
    """Numbers of their characters, ``(n, LENGTH)`` int64, with 0 behind the last."""
    codes = torch.zeros(len(names), LENGTH, dtype=torch.int64)
    for row, name in zip(codes, names, strict=True):
        numbers = [_ALPHABET.index(character) + 1 for character in name[:LENGTH]]
        row[: len(numbers)] = torch.tensor(numbers)
    return codes


class NameNet(nn.Module):
    """Maps ``(B, LENGTH)`` encoded names to ``(B, embedding_size)`` embeddings of any length."""

    def __init__(self, embedding_size: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(_ALPHABET) + 1, _WIDTHS[0], padding_idx=0)
        self.blocks = nn.Sequential(*(_block(*channels) for channels in pairwise(_WIDTHS)))
        self.embedding = nn.Linear(_WIDTHS[-1], embedding_size)

    def forward(self, codes: Tensor) -> Tensor:
        features = self.blocks(self.characters(codes).transpose(1, 2))
        embeddings: Tensor = self.embedding(features.amax(dim=2))
        return embeddings


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(channels_in, channels_out, 5, padding=2, bias=False),
        nn.BatchNorm1d(channels_out),
        nn.ReLU(inplace=True),
        nn.MaxPool1d(2),
    )
