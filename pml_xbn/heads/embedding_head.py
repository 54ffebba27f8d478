"""Layers from features to embeddings, whose error says which shape they expect."""

from __future__ import annotations

from torch import Tensor, nn


class EmbeddingHead(nn.Module):
    """A sequence of layers from a backbone's features to embeddings.

    Args:
        in_features: the number of dimensions, or channels, of the features.
        *layers: the layers, applied in turn.
        takes_maps: whether the features are maps ``(b, in_features, h, w)``, which the head pools itself. By
            default they are pooled rows ``(b, in_features)``.

    Example:
        >>> import torch
        >>> head = EmbeddingHead(8, nn.Linear(8, 2))
        >>> head(torch.zeros(4, 8)).shape
        torch.Size([4, 2])
    """

    def __init__(self, in_features: int, *layers: nn.Module, takes_maps: bool = False) -> None:
        super().__init__()
        self.in_features = in_features
        self.takes_maps = takes_maps
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        """Maps features to embeddings ``(b, embedding_size)``, which only the layers may normalize.

        Raises:
            ValueError: the features have another shape.
        """
        expected = 4 if self.takes_maps else 2
        if features.ndim != expected or features.shape[1] != self.in_features:
            shape, pool = (", h, w", "''") if self.takes_maps else ("", "'avg'")
            raise ValueError(
                f"features has shape {tuple(features.shape)}: pass (b, {self.in_features}{shape}), as timm's "
                f"models of that many features give with num_classes=0, global_pool={pool}"
            )
        embeddings: Tensor = self.layers(features)
        return embeddings
