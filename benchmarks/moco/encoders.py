"""The encoder of the queries, and that of the keys, which follows it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from benchmarks.engine.diagnostics import embed_without_trace
from benchmarks.engine.glyph_net import GlyphNet
from benchmarks.engine.randomness import generator_for, seed_for
from benchmarks.moco.settings import Settings
from benchmarks.moco.split_batch_norm import split_batch_norms


class Encoders(nn.Module):
    """Two networks of one architecture that start equal.

    Embeddings come out as the last layer makes them, of any length, and are stored so, as in PML's notebook;
    the loss compares their directions.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        torch.manual_seed(seed_for(settings.seed, "weights"))
        if settings.dataset == "glyphs":
            self.query: nn.Module = GlyphNet(settings.embedding_size)
        else:
            self.query = _cifar_resnet18(settings.embedding_size)
        split_batch_norms(self.query, settings.bn_splits)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.momentum = settings.momentum

    def forward(self, queries: Tensor, keys: Tensor, *shuffle_key: int | str) -> tuple[Tensor, Tensor]:
        """Returns (B, d) of queries with gradient, and of keys without, after a step of the key encoder.

        The order in which the keys are normalised depends on ``shuffle_key`` alone.
        """
        embedded_queries: Tensor = self.query(queries)
        with torch.no_grad():
            self._follow()
            order = _order(keys, shuffle_key)
            embedded_keys: Tensor = self.key(keys[order])[order.argsort()]
        return embedded_queries, embedded_keys

    def embed_again(self, keys: Tensor, *shuffle_key: int | str) -> Tensor:
        """Returns the keys of an earlier step, normalised as then, by the key encoder as it is and stays."""
        order = _order(keys, shuffle_key)
        return embed_without_trace(self.key, keys[order])[order.argsort()]

    def _follow(self) -> None:
        # The parameters alone, as in MoCo: each encoder has the BN statistics of what it has seen.
        for key, query in zip(self.key.parameters(), self.query.parameters(), strict=True):
            key.lerp_(query, 1 - self.momentum)


def _order(keys: Tensor, shuffle_key: tuple[int | str, ...]) -> Tensor:
    return torch.randperm(len(keys), generator=generator_for(*shuffle_key)).to(keys.device)


def _cifar_resnet18(embedding_size: int) -> nn.Module:
    """Returns a ResNet-18 that keeps the resolution of small images: a 3x3 stem of stride 1, no pooling."""
    from torchvision.models import resnet18

    network: nn.Module = resnet18(num_classes=embedding_size)
    network.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network
