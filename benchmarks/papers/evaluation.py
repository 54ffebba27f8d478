"""Recall@K, MAP@R and NMI of the test images, and how their embeddings lie."""

from __future__ import annotations

from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from benchmarks.engine.accuracy import retrieval_accuracy
from benchmarks.engine.diagnostics import embedding_diagnostics
from benchmarks.engine.history import Row
from benchmarks.engine.keyed_items import Images, KeyedItems, load
from benchmarks.engine.modes import evaluation_mode
from benchmarks.engine.ranks import Ranks
from benchmarks.engine.task import Evaluated
from benchmarks.papers.augmentation import Transform
from benchmarks.papers.data import TaskData
from benchmarks.papers.settings import Settings

_RECALL_AT = (1, 10, 100)
# The values of K of the papers' tables, beside these.
_MORE_RECALL_AT = {
    "sop": (1000,),
    "in-shop": (20, 30, 40, 50),
    "deep-fashion2": (20,),
    "vehicle-id": (5,),
    "cub": (2, 4, 8, 16, 32),
    "cars": (2, 4, 8, 16, 32),
}

# Embeddings and labels of the queries, and of the gallery.
_Search = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


class Evaluation:
    """Embeds the test images and measures retrieval and, if wished, clustering.

    All ranks embed a part each; the first one measures, and the others know no numbers.
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
        labels = data.queries.labels.to(queries.device)
        others = None if data.gallery is None else data.gallery.labels.to(queries.device)
        searches: list[_Search] = [(queries, labels, gallery, others)]
        if data.drawn_galleries is not None:
            searches = [
                (queries[~drawn], labels[~drawn], queries[drawn], labels[drawn])
                for drawn in data.drawn_galleries.to(labels.device)
            ]
        recall_at = sorted({*_RECALL_AT, *_MORE_RECALL_AT.get(settings.dataset, ())})
        rows = [retrieval_accuracy(*search, recall_at=recall_at, nmi=nmi) for search in searches]
        percentages = {name: fmean(row[name] for row in rows) for name in rows[0]}
        # Separability is that of the features as the model returns them, as in SGSL's Table 5.
        diagnostics = embedding_diagnostics(queries, labels, data.queries.superclasses, features)
        return Evaluated(percentages, diagnostics)

    def _comparable(self, features: Tensor) -> Tensor:
        """Returns what retrieval compares: embeddings of unit length, or their signs."""
        return signs(features) if self.settings.binary else normalize(features)

    @torch.no_grad()
    def _embed(self, model: nn.Module, images: Images) -> Tensor:
        """Returns (N, d), as the model in evaluation mode returns them; the model keeps its own mode."""
        ranks, settings = self.ranks, self.settings
        size = -(-len(images) // ranks.world_size)
        first = ranks.rank * size
        # All ranks embed equally many: the last ones begin again at the first image.
        mine = [(position % len(images),) for position in range(first, first + size)]
        batches = [mine[i : i + settings.batch_size] for i in range(0, size, settings.batch_size)]
        items = KeyedItems(images, self.transform, settings.seed)
        parts = []
        with evaluation_mode(model):
            for inputs, _ in load(items, batches, settings.workers):
                with ranks.autocast(settings.mixed_precision):
                    parts.append(model(inputs.to(ranks.device)).float())
        return ranks.gather(torch.cat(parts))[: len(images)]


def result_row(accuracy: Row, embeddings: Row) -> Row:
    """Returns the accuracies, and the papers' figures of embeddings, shares in per cent."""
    scatter = {name: value for name, value in embeddings.items() if name.startswith("separability")}
    shares = {name: 100 * value for name, value in embeddings.items() if name.startswith("superclass_within")}
    return {**accuracy, **scatter, **shares}


def signs(embeddings: Tensor) -> Tensor:
    """Bits as ±1, thresholded at zero (NormSoftmax §4.6); their cosine is the Hamming distance reversed."""
    return torch.where(embeddings > 0, 1.0, -1.0)
