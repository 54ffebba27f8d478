"""The papers' heads by name."""

from __future__ import annotations

from torch import nn

from .._checks import check_integer, check_one_of
from .embedding_head import EmbeddingHead
from .gem_pooling import GeMPooling
from .l2_normalize import L2Normalize
from .momentum_batch_norm import MomentumBatchNorm

HEADS = ("linear", "layer-norm", "bn", "mbn", "ln", "bn-neck", "gem", "gem-bn-neck")

# Heads that pool by themselves, and so take the backbone's feature map.
MAP_HEADS = ("gem", "gem-bn-neck")


def make_head(
    name: str,
    in_features: int,
    embedding_size: int,
    *,
    num_calls: int | None = None,
    ideal_batch_size: int = 128,
) -> EmbeddingHead:
    """Builds a head by its name.

    * ``"linear"``: a linear layer (Adaptive Cross Batch Normalization, §5.1).
    * ``"layer-norm"``: layer normalization of the features, without parameters, and a linear layer without
      bias (Classification is a Strong Baseline for Deep Metric Learning, §3.2 and §4.1). If the embedding
      has as many dimensions as the features there is no linear layer, as in the authors' code.
    * ``"bn"``, ``"mbn"``, ``"ln"``: a linear layer, L2 normalization, and on the embedding batch
      normalization, :class:`MomentumBatchNorm` or layer normalization, each with scale and bias (Adaptive
      Cross Batch Normalization, Appendix A and Table 3, where networks with BN and MBN did not train and LN
      helps XBM). The paper's wording puts the L2 normalization first; a loss with cosine similarity
      normalizes once more.
    * ``"bn-neck"``: batch normalization without scale and bias on top of the features (Stop-Gradient
      Softmax Loss, Figure 2, after Luo et al.'s BNNeck). If the embedding has as many dimensions as the
      features, that is all. For fewer the paper does not say where they are reduced; here a linear layer
      comes after it, with a bias that starts at zero, as in the code of Boudiaf et al. (A unifying mutual
      information view of metric learning, 2020), to which the paper defers.
    * ``"gem"``: :class:`GeMPooling` in place of average pooling, and a linear layer.
    * ``"gem-bn-neck"``: :class:`GeMPooling` and the layers of ``"bn-neck"``: the network of Stop-Gradient
      Softmax Loss, whose backbone goes through :func:`remove_last_bn_relu`.

    Args:
        name: one of ``HEADS``. Those in ``MAP_HEADS`` take feature maps ``(b, in_features, h, w)``, as timm's
            models give with ``global_pool=''``; the others take pooled features ``(b, in_features)``.
        in_features: the number of features of the backbone, ``num_features`` of timm's models.
        embedding_size: the number of dimensions d.
        num_calls: for ``"mbn"`` alone: the number of training calls in all, epochs · batches per epoch.
        ideal_batch_size: for ``"mbn"`` alone: m₀ (default 128), twice the batch size in the paper.

    Raises:
        ValueError: the name is unknown, a size is below 1, or ``"mbn"`` has no ``num_calls``.

    Example:
        >>> import torch
        >>> make_head("layer-norm", 2048, 512)(torch.randn(4, 2048)).shape
        torch.Size([4, 512])
    """
    check_one_of("name", name, HEADS)
    check_integer("in_features", in_features, at_least=1)
    check_integer("embedding_size", embedding_size, at_least=1)
    linear = nn.Linear(in_features, embedding_size, bias=name != "layer-norm")
    reduction = [] if embedding_size == in_features else [linear]
    layers: list[nn.Module]
    if name == "layer-norm":
        layers = [nn.LayerNorm(in_features, elementwise_affine=False), *reduction]
    elif name == "bn":
        layers = [linear, L2Normalize(), nn.BatchNorm1d(embedding_size)]
    elif name == "mbn":
        if num_calls is None:
            raise ValueError(
                "num_calls=None: pass the number of calls over which the momentum of 'mbn' grows"
            )
        layers = [linear, L2Normalize(), MomentumBatchNorm(embedding_size, num_calls, ideal_batch_size)]
    elif name == "ln":
        layers = [linear, L2Normalize(), nn.LayerNorm(embedding_size)]
    elif name.endswith("bn-neck"):
        nn.init.zeros_(linear.bias)
        layers = [nn.BatchNorm1d(in_features, affine=False), *reduction]
    else:
        layers = [linear]
    if name in MAP_HEADS:
        layers.insert(0, GeMPooling())
    return EmbeddingHead(in_features, *layers, takes_maps=name in MAP_HEADS)
