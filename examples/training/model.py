"""A backbone of timm and a head that makes embeddings of its features."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import normalize

from pml_xbn.heads import MAP_HEADS, make_head, remove_last_bn_relu

from .settings import Settings


class EmbeddingModel(nn.Module):
    """Images (B, 3, H, W) to embeddings (B, d).

    Args:
        backbone: gives features, or feature maps where the head pools.
        head: gives embeddings.
        normalized: make them unit length.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, normalized: bool) -> None:
        super().__init__()
        self.backbone, self.head, self.normalized = backbone, head, normalized

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.head(self.backbone(images)).float()
        return normalize(embeddings) if self.normalized else embeddings


def build_model(settings: Settings, num_calls: int) -> tuple[EmbeddingModel, dict[str, Any]]:
    """The model, and what timm says of its input: mean, std, interpolation, crop_pct.

    Args:
        settings: which model.
        num_calls: training steps in all.

    Raises:
        ValueError: timm has no such backbone, or it does not go with the head.
    """
    try:
        import timm
        from timm.data import resolve_data_config
    except ImportError as error:
        raise ImportError(
            f'backbones come from timm ({error}); install it with: pip install "pml_xbn[examples]"'
        ) from error

    if not timm.is_model(settings.backbone):
        close = get_close_matches(settings.backbone, timm.list_models(), n=5)
        raise ValueError(
            f"--backbone is {settings.backbone!r}, which timm {timm.__version__} does not have; "
            f"choose one of timm.list_models(), such as {', '.join(close) or 'resnet50'}"
        )
    pool = {"global_pool": ""} if settings.head in MAP_HEADS else {}
    backbone = timm.create_model(settings.backbone, settings.pretrained, num_classes=0, **pool)
    if settings.remove_last_bn_relu:
        try:
            remove_last_bn_relu(backbone)
        except TypeError as error:
            raise ValueError(f"--remove-last-bn-relu: {error}") from error
    head = make_head(
        settings.head,
        backbone.num_features,
        settings.embedding_size,
        num_calls=num_calls,
        ideal_batch_size=2 * settings.batch_size,
    )
    return EmbeddingModel(backbone, head, settings.normalize), resolve_data_config({}, model=backbone)
