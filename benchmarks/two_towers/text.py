"""Texts as numbers, and the networks that embed them."""

from __future__ import annotations

import unicodedata
import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor, nn

LENGTH = 80  # characters; longer names are cut
_ALPHABET = " -0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WIDTHS = (32, 64, 64, 128)  # of characters, and behind each block
_TOKENS, _BUCKETS = 96, 2**14
_HIDDEN = 256
_LSA_SIZE = 256


def encode(names: Sequence[str]) -> Tensor:
    """Returns numbers of their characters, ``(n, LENGTH)`` int64, with 0 behind the last."""
    codes = torch.zeros(len(names), LENGTH, dtype=torch.int64)
    for row, name in zip(codes, names, strict=True):
        numbers = [_ALPHABET.index(character) + 1 for character in name[:LENGTH]]
        row[: len(numbers)] = torch.tensor(numbers)
    return codes


def hashed(texts: Sequence[str]) -> Tensor:
    """Returns numbers of words and of their parts of three letters, ``(n, 96)`` int64, 0 behind the last.

    Case and accents do not count. A number is a hash below 2^14.
    """
    codes = torch.zeros(len(texts), _TOKENS, dtype=torch.int64)
    for row, text in zip(codes, texts, strict=True):
        plain = "".join(
            c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c)
        )
        words = [f"<{word}>" for word in "".join(c if c.isalnum() else " " for c in plain).split()]
        parts = [word[i : i + 3] for word in words for i in range(len(word) - 2)]
        numbers = [zlib.crc32(token.encode()) % (_BUCKETS - 1) + 1 for token in (*words, *parts)][:_TOKENS]
        row[: len(numbers)] = torch.tensor(numbers)
    return codes


def latent_semantics(train: Sequence[str], test: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Returns (n, 256) unit vectors: the first singular vectors of tf-idf of parts of words."""
    weights = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), min_df=3, max_features=30_000)
    counts = weights.fit_transform(train)
    svd = TruncatedSVD(min(_LSA_SIZE, min(counts.shape) - 1), n_iter=2, random_state=0)
    found = svd.fit_transform(counts), svd.transform(weights.transform(test))
    first, second = (torch.from_numpy(np.asarray(one, dtype=np.float32)) for one in found)
    return nn.functional.normalize(first), nn.functional.normalize(second)


class NameNet(nn.Module):
    """Maps ``(B, LENGTH)`` encoded names to ``(B, embedding_size)`` embeddings of any length."""

    def __init__(self, embedding_size: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(_ALPHABET) + 1, _WIDTHS[0], padding_idx=0)
        self.blocks = nn.Sequential(*(_block(*channels) for channels in pairwise(_WIDTHS)))
        self.embedding = nn.Linear(_WIDTHS[-1], embedding_size)

    def forward(self, codes: Tensor) -> Tensor:
        features = self.blocks(self.characters(codes).transpose(1, 2))
        return self.embedding(features.amax(dim=2))


class Bag(nn.Sequential):
    """Maps the numbers of `hashed` to embeddings of any length: the mean of their vectors, and two layers."""

    def __init__(self, embedding_size: int) -> None:
        super().__init__(
            nn.EmbeddingBag(_BUCKETS, embedding_size, mode="mean", padding_idx=0),
            *Projector(embedding_size, embedding_size),
        )


class Projector(nn.Sequential):
    """Maps features of a frozen network to embeddings of any length, by two layers."""

    def __init__(self, features: int, embedding_size: int) -> None:
        super().__init__(nn.Linear(features, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, embedding_size))


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(channels_in, channels_out, 5, padding=2, bias=False),
        nn.BatchNorm1d(channels_out),
        nn.ReLU(inplace=True),
        nn.MaxPool1d(2),
    )
