"""Recall@K, MAP@R and NMI of embeddings, a part of the queries at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.engine.modes import evaluation_mode

_CHUNK = 64  # images; larger ones leave a CPU's cache and take three times as long
_PART = 4096  # queries: as many as faiss has at a time
_PART_OF_TORCH = 512  # whose distances to all references are in memory

Search = Callable[[Tensor, int], tuple[Tensor, Tensor]]


@torch.no_grad()
def embed(model: nn.Module, images: Tensor) -> Tensor:
    """Returns unit-length embeddings of (N, C, H, W) in evaluation mode; the model keeps its own mode."""
    with evaluation_mode(model):
        embeddings = torch.cat([model(chunk) for chunk in images.split(_CHUNK)])
    return nn.functional.normalize(embeddings)


def neighbours(
    queries: Tensor, gallery: Tensor | None, k: int, part_size: int | None = None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Places of a part of the queries, with squared distances and places of their k nearest references.

    On a CPU faiss searches, if it is installed, and else torch. The memory is that of a part, not of all
    queries.

    Args:
        queries: (N, d).
        gallery: (M, d); None for the queries, of which none is its own neighbour.
        k: how many, at most those that there are.
        part_size: queries at a time; default 4,096 of faiss, 512 of torch.
    """
    references, itself = queries if gallery is None else gallery, int(gallery is None)
    is_by_faiss = queries.device.type == "cpu" and find_spec("faiss") is not None
    search, size = (
        (_by_faiss(references), _PART) if is_by_faiss else (by_products(references), _PART_OF_TORCH)
    )
    size = size if part_size is None else part_size
    for first in range(0, len(queries), size):
        part = slice(first, min(first + size, len(queries)))
        distances, places = search(queries[part], k + itself)
        if itself:
            own = places == torch.arange(part.start, part.stop, device=places.device)[:, None]
            own[~own.any(dim=1), -1] = True  # where others are equally near
            distances, places = (found[~own].view(-1, k) for found in (distances, places))
        yield part, distances, places


def _by_faiss(references: Tensor) -> Search:
    from pytorch_metric_learning.utils.inference import FaissKNN

    search: Any = FaissKNN(reset_before=False, reset_after=False)
    search.train(references)
    return search


def by_products(references: Tensor) -> Search:
    """Returns a search by torch, where the references are."""
    lengths = references.square().sum(dim=1)

    def search(queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        distances = lengths - 2 * queries @ references.T
        nearest, places = distances.topk(k, largest=False)
        return nearest + queries.square().sum(dim=1, keepdim=True), places

    return search


def retrieval_accuracy(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    recall_at: Sequence[int] = (1, 10),
    nmi: bool = False,
    part_size: int | None = None,
) -> dict[str, float]:
    """Returns Recall@K for every possible K, MAP@R and, if wished, NMI; in per cent.

    Recall@K is the share of queries that find an image of their class among their K nearest, MAP@R PML's mean
    average precision at R. A query of whose class there is no reference counts as a miss in both.

    Args:
        queries: (N, d), where the search takes place.
        query_labels: (N,).
        gallery: (M, d); None: every query is searched for among the other queries.
        gallery_labels: (M,).
        recall_at: values of K.
        nmi: cluster the queries too.
        part_size: see :func:`neighbours`.
    """
    references = query_labels if gallery_labels is None else gallery_labels
    counts = references.bincount(minlength=int(query_labels.max()) + 1) - int(gallery is None)
    sizes = counts[query_labels]  # R, of every query
    available = len(references) - (gallery is None)
    recall_at = [k for k in recall_at if k <= available]
    k = min(available, max(*recall_at, int(counts.max()) + int(gallery is None)))
    ranks = torch.arange(1, k + 1, device=queries.device)
    hits = torch.zeros(len(recall_at))
    firsts, precisions = torch.zeros(2, len(queries), dtype=torch.float64)
    for part, _, places in neighbours(queries, gallery, k, part_size):
        # A query without a match may still find itself, where an equal embedding was taken for its own.
        right = (references[places] == query_labels[part, None]) & (sizes[part, None] > 0)
        hits += torch.stack([right[:, :at].any(dim=1).sum() for at in recall_at]).cpu()
        firsts[part] = right[:, 0].double().cpu()
        right &= ranks <= sizes[part, None]
        found = (right.cumsum(dim=1) * right).double() / ranks
        precisions[part] = (found.sum(dim=1) / sizes[part].clamp(min=1)).cpu()
    result = {f"recall_at_{at}": 100 * float(n / len(queries)) for at, n in zip(recall_at, hits, strict=True)}
    result |= {"recall_at_1": 100 * float(firsts.mean()), "map_at_r": 100 * float(precisions.mean())}
    if nmi:
        from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

        calculator = AccuracyCalculator(include=("NMI",), device=torch.device("cpu"))
        result["nmi"] = 100 * float(calculator.get_accuracy(queries.cpu(), query_labels.cpu())["NMI"])
    return result


def hits_by_class(queries: Tensor, labels: Tensor) -> dict[str, list[int]]:
    """Returns of every class its "images" and its "hits", images whose nearest neighbour is of the class."""
    right = torch.cat([labels[x[:, 0]] == labels[part] for part, _, x in neighbours(queries, None, 1)])
    classes, inverse = labels.unique(return_inverse=True)
    hits = inverse[right].bincount(minlength=len(classes))
    return {"hits": hits.tolist(), "images": inverse.bincount().tolist()}
