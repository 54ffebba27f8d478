"""The softmax loss, joined by one between unit vectors that moves the embeddings alone."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.distances import DotProductSimilarity
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot, softplus

from .._checks import check_non_negative, check_positive
from ._options import suggest_keywords
from .base_classification_loss import BaseClassificationLoss


@suggest_keywords
class StopGradientSoftmaxLoss(BaseClassificationLoss):
    """Stop-Gradient Softmax Loss, together with the softmax loss that it shares its weights with.

    Stop-Gradient Softmax Loss for Deep Metric Learning, Eq. 5 to 7 and 10. The softmax loss is of the
    products of embeddings and weights, without bias or normalisation, with label smoothing. The other (Eq. 6)
    is of their cosines: no gradient of it reaches the weights, γ scales the similarities to other classes
    alone. Retrieval is by cosine similarity. PML sees the sub-losses ``softmax_loss`` and ``sgsl_loss``.

    The paper's embeddings come from batch normalization without scale and bias, ``"bn-neck"`` and
    ``"gem-bn-neck"`` of :func:`~pml_xbn.heads.make_head`, after :func:`~pml_xbn.heads.remove_last_bn_relu`.

    Args:
        gamma: γ; 30 in the paper, whose Table 4 finds little difference from 10 on.
        threshold: Eq. 6 counts in batches whose mean softmax loss, smoothed and without a miner's weights, is
            below it (Implementation Details: 3, for stability); ``float("inf")`` for always.
        label_smoothing: fraction of the target that goes to all classes alike, in the softmax loss. The paper
            does not say how much; Boudiaf et al. (2020), to whom it refers, give 0.1 to the other classes.
        beta: β, the weight of Eq. 6; 1 in Eq. 7, and the best of the paper's Table 6.
        others: see :class:`~pml_xbn.losses.base_classification_loss.BaseClassificationLoss`; no ``distance``.
            The distance is always ``DotProductSimilarity(normalize_embeddings=False)``, as in Eq. 5. The
            default reducer is ``MeanReducer()``.
            With PML's first weights, logits would be ‖f‖ and more, and the loss never below the threshold.

    Raises:
        ValueError: a number out of range.

    Example:
        >>> loss_fn = StopGradientSoftmaxLoss(num_classes=2, embedding_size=2, label_smoothing=0.0)
        >>> loss_fn.W.data = torch.eye(2)
        >>> embeddings = torch.tensor([[3.0, 0.0]])
        >>> loss = loss_fn(embeddings, torch.tensor([0]))
        >>> bool(loss.isclose(torch.log1p(torch.tensor(-3.0).exp()) + torch.log1p(torch.tensor(-1.0).exp())))
        True
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        gamma: float = 30.0,
        threshold: float = 3.0,
        label_smoothing: float = 0.1,
        beta: float = 1.0,
        **kwargs: Any,
    ) -> None:
        check_positive("gamma", gamma)
        if threshold != float("inf"):
            check_non_negative("threshold", threshold)
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing={label_smoothing!r}: pass a number in [0, 1]")
        check_non_negative("beta", beta)
        distance = DotProductSimilarity(normalize_embeddings=False)  # of Eq. 5
        super().__init__(num_classes, embedding_size, distance=distance, **kwargs)
        self.gamma, self.threshold = gamma, threshold
        self.label_smoothing, self.beta = label_smoothing, beta
        self.add_to_recordable_attributes(list_of_names=["gamma", "threshold", "label_smoothing", "beta"])

    def element_losses(self, embeddings: Tensor, weights: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.similarities(embeddings, weights)
        softmax = cross_entropy(logits, labels, label_smoothing=self.label_smoothing, reduction="none")
        # Eq. 6
        cosines = normalize(embeddings, dim=1) @ normalize(weights.detach(), dim=0)
        is_own = one_hot(labels, self.num_classes).bool()
        to_others = (self.gamma * cosines).masked_fill(is_own, -torch.inf).logsumexp(dim=1) / self.gamma
        stop_gradient = softplus(to_others - cosines[is_own])
        joins = softmax.detach().mean() < self.threshold
        return {"softmax_loss": softmax, "sgsl_loss": torch.where(joins, self.beta * stop_gradient, 0.0)}

    def _sub_loss_names(self) -> list[str]:
        return ["softmax_loss", "sgsl_loss"]
