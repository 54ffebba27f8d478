"""Recall@1, Recall@10 and MAP@R of embeddings, every image a query against all others."""

import torch
from torch import Tensor, nn

from benchmarks.engine.accuracy import RetrievalAccuracy

_NEIGHBOURS = 10
_CHUNK = 64  # larger ones leave a CPU's cache and take three times as long


@torch.no_grad()
def embed(model: nn.Module, images: Tensor) -> Tensor:
    """Unit-length embeddings in evaluation mode; leaves the model in training mode.

    Args:
        model: the network.
        images: (N, 1, H, W) float.
    """
    model.eval()
    embeddings = torch.cat([model(chunk) for chunk in images.split(_CHUNK)])
    model.train()
    return nn.functional.normalize(embeddings)


def retrieval_accuracy(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """Recall@1, Recall@10 and MAP@R in percent, the query itself excluded.

    Args:
        embeddings: (N, d), on any device; the search runs on the CPU.
        labels: (N,) of classes with at least 2 images.
    """
    calculator = RetrievalAccuracy(
        recall_at=(_NEIGHBOURS,),
        include=("precision_at_1", "recall_at_10", "mean_average_precision_at_r"),
        k=max(_NEIGHBOURS, int(labels.bincount().max())),
        device=torch.device("cpu"),
    )
    accuracy = calculator.get_accuracy(embeddings.cpu(), labels.cpu())
    return {
        "recall_at_1": 100 * accuracy["precision_at_1"],
        "recall_at_10": 100 * accuracy["recall_at_10"],
        "map_at_r": 100 * accuracy["mean_average_precision_at_r"],
    }
