"""Normalized softmax over the classes of the batch and some of the others."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.distances import DotProductSimilarity
from torch import Tensor
from torch.nn.functional import cross_entropy

from .._checks import check_positive
from ._options import suggest_keywords
from .base_classification_loss import BaseClassificationLoss


@suggest_keywords
class SampledNormalizedSoftmaxLoss(BaseClassificationLoss):
    """PML's ``NormalizedSoftmaxLoss`` among a random subset of the classes.

    Classification is a Strong Baseline for Deep Metric Learning, Eq. 1 with the subsampling of §4.5: every
    batch is compared with its own classes, and with as many others, at random, as make up ``share``. With
    10 % of the classes of Stanford Online Products the paper's Recall@1 falls by less than one point
    (Figure 4). ``share=1`` is PML's loss. In ``eval()`` mode and in ``get_logits`` all classes are compared.

    The weights start as in the authors' code. PML's, of length 22.6 at d = 512 where these have 0.58, are as
    good as frozen at the paper's learning rate: a step's angle falls with the square of a weight's length.

    Classes are drawn from torch's generator of the CPU: ``torch.set_rng_state`` resumes with the same ones.

    Args:
        temperature: σ, 0.05 in the paper (§4.1).
        share: fraction of the C classes, in (0, 1]. A batch with more classes than that has them all.
        others: see :class:`~pml_xbn.losses.base_classification_loss.BaseClassificationLoss`. The default
            distance is PML's ``DotProductSimilarity()``, which normalizes the embeddings, and the default
            reducer ``MeanReducer()``.

    Raises:
        ValueError: a number out of range.

    Example:
        >>> loss_fn = SampledNormalizedSoftmaxLoss(num_classes=100, embedding_size=8, share=0.1)
        >>> loss_fn(torch.randn(4, 8), torch.tensor([3, 3, 71, 71])).backward()
        >>> int((loss_fn.W.grad != 0).any(dim=0).sum())
        10
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 0.05,
        share: float = 1.0,
        **kwargs: Any,
    ) -> None:
        check_positive("temperature", temperature)
        if not 0 < share <= 1:
            raise ValueError(f"share={share!r}: pass a number above 0 and up to 1")
        super().__init__(num_classes, embedding_size, **kwargs)
        self.temperature, self.share = temperature, share
        self.add_to_recordable_attributes(list_of_names=["temperature", "share"], is_stat=False)

    def similarities(self, embeddings: Tensor, weights: Tensor) -> Tensor:
        """The logits of Eq. 1: similarities over σ."""
        logits = super().similarities(embeddings, self.distance.normalize(weights, dim=0))
        return logits / (self.temperature if self.distance.is_inverted else -self.temperature)

    def element_losses(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.training and self.share < 1:
            in_batch, labels = labels.unique(return_inverse=True)
            weights = weights[:, self._with_others(in_batch)]
        logits = self.similarities(embeddings, weights)
        return {"loss": cross_entropy(logits, labels, reduction="none")}

    def get_default_distance(self) -> DotProductSimilarity:
        return DotProductSimilarity()

    def _with_others(self, in_batch: Tensor) -> Tensor:
        """The given classes, and behind them those that are drawn from the others."""
        is_other = torch.ones(self.num_classes, dtype=torch.bool, device=in_batch.device)
        is_other[in_batch] = False
        others = is_other.nonzero().squeeze(1)
        num_drawn = max(round(self.share * self.num_classes) - len(in_batch), 0)
        drawn = torch.randperm(len(others), device="cpu")[:num_drawn].to(others.device)
        return torch.cat([in_batch, others[drawn]])
