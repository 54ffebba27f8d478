"""kNN accuracy: how well neighbours tell the class of an image, with embeddings learnt without classes."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.engine.accuracy import neighbours


def knn_accuracy(
    queries: Tensor, query_labels: Tensor, gallery: tuple[Tensor, Tensor] | None, k: int, temperature: float
) -> dict[str, float]:
    """Returns the accuracy in percent of the weighted vote of k neighbours, and Recall@1.

    Each of the k nearest neighbours votes for its class with the weight exp(cosine / temperature), as in
    https://arxiv.org/abs/1805.01978, §3.4. Queries of whose class there is nothing to find are left out.

    Args:
        queries: (Q, d) of unit length, where the search takes place.
        query_labels: (Q,).
        gallery: (N, d) of unit length and (N,) labels to search in; None for all other queries.
        k: number of neighbours; all of them where there are fewer.
        temperature: of the weights.
    """
    vectors, labels = (None, query_labels) if gallery is None else gallery
    others = len(labels) - (gallery is None)
    counts = labels.bincount(minlength=int(query_labels.max()) + 1)
    is_right = torch.zeros(2, len(queries), dtype=torch.bool, device=queries.device)
    for part, distances, places in neighbours(queries, vectors, min(k, others)):
        found, weights = labels[places], ((1 - distances / 2) / temperature).exp()
        votes = weights.new_zeros(len(weights), len(counts)).scatter_add_(1, found, weights)
        for row, told in zip(is_right, (votes.argmax(dim=1), found[:, 0]), strict=True):
            row[part] = told == query_labels[part]
    shares = is_right[:, counts[query_labels] > int(gallery is None)].double().mean(dim=1).tolist()
    return {
        name: 100 * float(share) for name, share in zip(("weighted_knn", "recall_at_1"), shares, strict=True)
    }
