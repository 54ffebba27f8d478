"""Recall@K for PML's accuracy calculator."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor


class RetrievalAccuracy(AccuracyCalculator):
    """PML's calculator with Recall@K added in its way for custom metrics.

    Recall@K is the share of queries that find at least one image of their class among their K
    nearest; a query without any such image is a miss, while PML's own metrics leave it out.

    Args:
        recall_at: the values of K; each gives a metric ``recall_at_K``.
        **kwargs: PML's.
    """

    def __init__(self, recall_at: Sequence[int], **kwargs: Any) -> None:
        self.recall_at = tuple(recall_at)
        for neighbours in self.recall_at:
            # PML finds its metrics by the names of its methods.
            setattr(self, f"calculate_recall_at_{neighbours}", partial(_recall, neighbours))
        super().__init__(**kwargs)

    def requires_knn(self) -> list[str]:
        return [*super().requires_knn(), *(f"recall_at_{neighbours}" for neighbours in self.recall_at)]


def _recall(
    neighbours: int, knn_labels: Tensor, query_labels: Tensor, not_lone_query_mask: Tensor, **kwargs: Any
) -> float:
    hits = (knn_labels[:, :neighbours] == query_labels[:, None]).any(dim=1)
    # A query without a match may still find itself, where an equal embedding was taken for its own.
    return (hits & not_lone_query_mask).float().mean().item()
