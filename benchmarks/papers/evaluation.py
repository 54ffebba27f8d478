"""Recall@K, MAP@R and NMI of the test images, and how their embeddings lie."""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from benchmarks.engine.accuracy import RetrievalAccuracy
from benchmarks.engine.embedding_diagnostics import embedding_diagnostics
from benchmarks.papers.augmentation import Transform
from benchmarks.papers.data import Images, TaskData
from benchmarks.papers.keyed_items import KeyedItems, load
from benchmarks.papers.ranks import Ranks
from benchmarks.papers.settings import Settings

_RECALL_AT = (1, 10, 100)
# The values of K of the papers' tables, beside these.
_MORE_RECALL_AT = {
    "sop": (1000,),
    "in-shop": (20, 30, 40, 50),
    "deep-fashion2": (20,),
    "vehicle-id": (5,),
    "cub": (2, 4, 8),
    "cars": (2, 4, 8),
}

# Embeddings and labels of the queries, and of the gallery.
_Search = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


class Evaluated(NamedTuple):
    """Numbers by name, on the first rank; nothing on the others.

    Attributes:
        accuracy: percentages.
        diagnostics: of the queries' embeddings, if wished; see `embedding_diagnostics`. Separability is that
            of the features as the model returns them, as in SGSL's Table 5.
    """

    accuracy: dict[str, float]
    diagnostics: dict[str, float]


class Evaluation:
    """Embeds the test images and measures retrieval and, if wished, clustering.

    Args:
        settings: the run's.
        data: the test images.
        transform: makes the model's input.
        ranks: embed a part each; the first one measures.
    """

    def __init__(self, settings: Settings, data: TaskData, transform: Transform, ranks: Ranks) -> None:
        self.settings, self.data, self.transform, self.ranks = settings, data, transform, ranks

    def __call__(self, model: nn.Module, *, nmi: bool = False) -> Evaluated:
        data, settings = self.data, self.settings
        features = self._embed(model, data.queries)
        queries = self._comparable(features)
        gallery = None if data.gallery is None else self._comparable(self._embed(model, data.gallery))
        if not self.ranks.is_first:
            return Evaluated({}, {})
        labels = data.queries.labels
        searches: list[_Search] = [
            (queries, labels, gallery, None if data.gallery is None else data.gallery.labels)
        ]
        if data.drawn_galleries is not None:
            searches = [
                (queries[~drawn], labels[~drawn], queries[drawn], labels[drawn])
                for drawn in data.drawn_galleries
            ]
        recall_at = sorted({*_RECALL_AT, *_MORE_RECALL_AT.get(settings.dataset, ())})
        rows = [accuracy(*search, recall_at=recall_at, nmi=nmi) for search in searches]
        percentages = {name: fmean(row[name] for row in rows) for name in rows[0]}
        if not settings.diagnostics_every:
            return Evaluated(percentages, {})
        diagnostics = embedding_diagnostics(queries, labels, data.queries.superclasses, features)
        return Evaluated(percentages, diagnostics)

    def _comparable(self, features: Tensor) -> Tensor:
        """Unit length, or signs: what retrieval compares."""
        return signs(features) if self.settings.binary else normalize(features)

    @torch.no_grad()
    def _embed(self, model: nn.Module, images: Images) -> Tensor:
        """(N, d) on the CPU, as the model returns them; leaves it in training mode."""
        ranks, settings = self.ranks, self.settings
        size = -(-len(images) // ranks.world_size)
        first = ranks.rank * size
        # All ranks embed equally many: the last ones begin again at the first image.
        mine = [(position % len(images),) for position in range(first, first + size)]
        batches = [mine[i : i + settings.batch_size] for i in range(0, size, settings.batch_size)]
        items = KeyedItems(images, self.transform, settings.seed)
        model.eval()
        parts = []
        for inputs, _ in load(items, batches, settings.workers):
            with ranks.autocast(settings.mixed_precision):
                parts.append(model(inputs.to(ranks.device)).float())
        model.train()
        return ranks.gather(torch.cat(parts))[: len(images)].cpu()


def signs(embeddings: Tensor) -> Tensor:
    """Bits as ±1, thresholded at zero (NormSoftmax §4.6); their cosine is the Hamming distance reversed."""
    return torch.where(embeddings > 0, 1.0, -1.0)


def accuracy(
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor | None,
    gallery_labels: Tensor | None,
    *,
    recall_at: list[int],
    nmi: bool,
) -> dict[str, float]:
    """Recall@K for every K that the references suffice for, MAP@R and, if wished, NMI; in per cent.

    A query of whose class there is no reference counts as a miss in all of them but NMI.

    Args:
        queries: (N, d).
        query_labels: (N,).
        gallery: (M, d); None: every query is searched for among the other queries.
        gallery_labels: (M,).
        recall_at: values of K.
        nmi: cluster the queries too.
    """
    references = query_labels if gallery_labels is None else gallery_labels
    num_neighbours = len(references) - (gallery is None)
    recall_at = [k for k in recall_at if k <= num_neighbours]
    include = [*(f"recall_at_{k}" for k in recall_at), "mean_average_precision_at_r"]
    calculator = RetrievalAccuracy(
        recall_at,
        include=(*include, "NMI") if nmi else include,
        k=min(num_neighbours, max(*recall_at, int(references.bincount().max()))),
        device=torch.device("cpu"),
    )
    measured = calculator.get_accuracy(
        queries, query_labels, gallery, gallery_labels, ref_includes_query=gallery is None
    )
    result = {name: 100 * float(measured[name]) for name in include[:-1]}
    # PML's mean leaves out the queries without a match, and is NaN where there are no others.
    images_of_class = references.bincount(minlength=int(query_labels.max()) + 1)[query_labels]
    share = float((images_of_class > int(gallery is None)).float().mean())
    result["map_at_r"] = 100 * share * float(measured["mean_average_precision_at_r"]) if share else 0.0
    if nmi:
        result["nmi"] = 100 * float(measured["NMI"])
    return result
