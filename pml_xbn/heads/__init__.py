"""The papers' heads: the layers from a backbone's features to the embedding."""

from .embedding_head import EmbeddingHead
from .gem_pooling import GeMPooling
from .l2_normalize import L2Normalize
from .make_head import HEADS, MAP_HEADS, make_head
from .momentum_batch_norm import MomentumBatchNorm
from .remove_last_bn_relu import remove_last_bn_relu

__all__ = [
    "HEADS",
    "MAP_HEADS",
    "EmbeddingHead",
    "GeMPooling",
    "L2Normalize",
    "MomentumBatchNorm",
    "make_head",
    "remove_last_bn_relu",
]
