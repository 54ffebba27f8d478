"""kNN accuracy: how well neighbours tell the class of an image, with embeddings learnt without classes."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor

_CHUNK = 1024  # queries whose votes for all classes are held at once


class KNNAccuracy(AccuracyCalculator):
    """PML's calculator with weighted kNN classification, as in https://arxiv.org/abs/1805.01978, §3.4.

    Each of the k nearest neighbours votes for its class with the weight exp(cosine / temperature).
    """

    def __init__(self, temperature: float, **kwargs: Any) -> None:
        self.temperature = temperature
        super().__init__(**kwargs)

    def requires_knn(self) -> list[str]:
        return [*super().requires_knn(), "weighted_knn"]

    def calculate_weighted_knn(
        self,
        knn_labels: Tensor,
        knn_distances: Tensor,
        query_labels: Tensor,
        not_lone_query_mask: Tensor,
        **kwargs: Any,
    ) -> float:
        cosines = 1 - knn_distances / 2  # faiss gives squared distances between unit vectors
        voted = _vote(knn_labels.long(), (cosines / self.temperature).exp())
        return (voted == query_labels)[not_lone_query_mask].float().mean().item()


def _vote(labels: Tensor, weights: Tensor) -> Tensor:
    """(Q, k) labels and weights of neighbours -> (Q,) the label with the largest sum of weights."""
    classes = int(labels.max()) + 1
    parts = zip(labels.split(_CHUNK), weights.split(_CHUNK), strict=True)
    return torch.cat([w.new_zeros(len(w), classes).scatter_add_(1, y, w).argmax(dim=1) for y, w in parts])


def knn_accuracy(
    queries: Tensor,
    query_labels: Tensor,
    gallery: tuple[Tensor, Tensor] | None,
    k: int,
    temperature: float,
) -> dict[str, float]:
    """Accuracy in percent of the weighted vote of k neighbours, and of the nearest one alone (Recall@1).

    Args:
        queries: (Q, d) of unit length, on any device; the search runs on the CPU.
        query_labels: (Q,).
        gallery: (N, d) of unit length and (N,) labels to search in; None for all other queries.
        k: number of neighbours; all of them where there are fewer.
        temperature: of the weights.

    Returns:
        ``weighted_knn`` and ``recall_at_1``.
    """
    reference = () if gallery is None else tuple(tensor.cpu() for tensor in gallery)
    others = len(queries) - 1 if gallery is None else len(gallery[0])
    calculator = KNNAccuracy(
        temperature,
        include=("weighted_knn", "precision_at_1"),
        k=min(k, others),
        device=torch.device("cpu"),
    )
    accuracy = calculator.get_accuracy(queries.cpu(), query_labels.cpu(), *reference)
    return {
        "weighted_knn": 100 * accuracy["weighted_knn"],
        "recall_at_1": 100 * accuracy["precision_at_1"],
    }
