"""Recall@K, MAP@R and NMI of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor, nn

_CHUNK = 64  # larger ones leave a CPU's cache and take three times as long


@torch.no_grad()
def embed(model: nn.Module, images: Tensor) -> Tensor:
    """Unit-length embeddings in evaluation mode; leaves the model in training mode.

    Args:
        model: the network.
        images: (N, C, H, W) float.
    """
    model.eval()
    embeddings = torch.cat([model(chunk) for chunk in images.split(_CHUNK)])
    model.train()
    return nn.functional.normalize(embeddings)


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


def retrieval_accuracy(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    recall_at: Sequence[int] = (1, 10),
    nmi: bool = False,
) -> dict[str, float]:
    """Recall@K for every K that the references suffice for, MAP@R and, if wished, NMI; in per cent.

    A query of whose class there is no reference counts as a miss in all of them but NMI.

    Args:
        queries: (N, d), on any device; the search runs on the CPU.
        query_labels: (N,).
        gallery: (M, d); None: every query is searched for among the other queries.
        gallery_labels: (M,).
        recall_at: values of K.
        nmi: cluster the queries too.
    """
    queries, query_labels = queries.cpu(), query_labels.cpu()
    references = query_labels if gallery_labels is None else gallery_labels
    num_neighbours = len(references) - (gallery is None)
    recall_at = [k for k in recall_at if k <= num_neighbours]
    include = [*(f"recall_at_{k}" for k in recall_at), "precision_at_1", "mean_average_precision_at_r"]
    calculator = RetrievalAccuracy(
        recall_at,
        include=(*include, "NMI") if nmi else include,
        k=min(num_neighbours, max(*recall_at, int(references.bincount().max()))),
        device=torch.device("cpu"),
    )
    measured = calculator.get_accuracy(
        queries, query_labels, gallery, gallery_labels, ref_includes_query=gallery is None
    )
    result = {f"recall_at_{k}": 100 * float(measured[f"recall_at_{k}"]) for k in recall_at}
    # PML's means leave out the queries without a match, and are NaN where there are no others.
    images_of_class = references.bincount(minlength=int(query_labels.max()) + 1)[query_labels]
    share = float((images_of_class > int(gallery is None)).float().mean())
    of_matches = {"recall_at_1": "precision_at_1", "map_at_r": "mean_average_precision_at_r"}
    for name, metric in of_matches.items():
        result[name] = 100 * share * float(measured[metric]) if share else 0.0
    if nmi:
        result["nmi"] = 100 * float(measured["NMI"])
    return result
