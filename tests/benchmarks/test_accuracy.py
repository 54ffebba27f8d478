from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.engine.accuracy import by_products, hits_by_class, neighbours, retrieval_accuracy

pytest.importorskip("faiss")


def images(size: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 16, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(classes, (size,), generator=generator)
    return normalize(centres[labels] + 1.5 * torch.randn(size, 16, generator=generator)), labels


@pytest.mark.parametrize("with_gallery", [False, True])
@pytest.mark.parametrize("part", [1, 64, 4096])
def test_values_are_pmls_whatever_the_part(with_gallery: bool, part: int) -> None:
    queries, gallery = images(300, 20, 1), images(500, 20, 2) if with_gallery else (None, None)
    ours = retrieval_accuracy(*queries, *gallery, recall_at=(1,), part_size=part)
    include = ("precision_at_1", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include, k=200, device=torch.device("cpu"))
    theirs = calculator.get_accuracy(*queries, *gallery)
    assert ours["recall_at_1"] == pytest.approx(100 * theirs["precision_at_1"], rel=1e-12)
    assert ours["map_at_r"] == pytest.approx(100 * theirs["mean_average_precision_at_r"], rel=1e-12)


@pytest.mark.parametrize("with_gallery", [False, True])
def test_search_by_torch_finds_what_faiss_finds(with_gallery: bool) -> None:
    queries, gallery = images(100, 20, 1)[0], images(150, 20, 2)[0] if with_gallery else None
    (_, distances, places), *_ = neighbours(queries, gallery, 9)
    references = queries if gallery is None else gallery
    found, at = by_products(references.double())(queries.double(), 10)
    first = 0 if with_gallery else 1  # itself
    assert torch.equal(at[:, first : first + 9], places)
    torch.testing.assert_close(found[:, first : first + 9].float(), distances, rtol=1e-4, atol=1e-5)


def test_hits_of_the_classes_add_up_to_recall() -> None:
    queries, labels = images(300, 20, 1)
    labels *= 3  # numbers of classes need not be next to each other
    distances = torch.cdist(queries.double(), queries.double()).fill_diagonal_(torch.inf)
    right = labels[distances.argmin(dim=1)] == labels
    hits, numbers = (hits_by_class(queries, labels)[name] for name in ("hits", "images"))
    classes = labels.unique().tolist()
    assert hits == [int(right[labels == label].sum()) for label in classes]
    assert numbers == [int((labels == label).sum()) for label in classes]


def plain_search(
    queries: Tensor, labels: Tensor, gallery: Tensor | None, of_gallery: Tensor, k: int
) -> tuple[float, float]:
    """Recall@k and MAP@R, query by query in float64; one without a match is a miss."""
    hits, precisions = 0, []
    for index, (query, label) in enumerate(zip(queries, labels, strict=True)):
        distances = ((queries if gallery is None else gallery) - query).double().norm(dim=1)
        if gallery is None:
            distances[index] = torch.inf
        right = of_gallery[distances.argsort()] == label
        hits += bool(right[:k].any())
        size = int((of_gallery == label).sum()) - (gallery is None)
        found = [float(right[: rank + 1].double().mean()) for rank in range(size) if right[rank]]
        precisions.append(sum(found) / max(size, 1))
    return 100 * hits / len(queries), 100 * sum(precisions) / len(precisions)


@pytest.mark.parametrize("with_gallery", [False, True])
@pytest.mark.parametrize("lone", [0, 1, 20, 40])
def test_recall_is_that_of_a_plain_search_and_a_query_without_a_match_is_a_miss(
    lone: int, with_gallery: bool
) -> None:
    (queries, _), (rows, _) = images(40, 6, 1), images(30, 6, 2)
    labels, other = torch.arange(40) % 6, torch.arange(30) % 6
    labels[:lone] = torch.arange(17, 17 + lone)
    gallery, of_gallery = (rows, other) if with_gallery else (None, labels)
    measured = retrieval_accuracy(
        queries, labels, gallery, None if gallery is None else other, recall_at=[1, 10, 100]
    )
    for k in (1, 10):
        recall, map_at_r = plain_search(queries, labels, gallery, of_gallery, k)
        assert measured[f"recall_at_{k}"] == pytest.approx(recall, abs=1e-4)
        assert measured["map_at_r"] == pytest.approx(map_at_r, abs=1e-4)
    assert measured["recall_at_10"] <= 100 - 100 * lone / 40
    assert "recall_at_100" not in measured  # there are not so many


def test_a_query_whose_class_has_no_other_image_is_a_miss_even_among_equal_embeddings() -> None:
    rows, labels = normalize(torch.ones(6, 3)), torch.tensor([0, 1, 2, 3, 4, 4])
    measured = retrieval_accuracy(rows, labels, recall_at=[5])
    assert measured["recall_at_5"] == pytest.approx(100 * 2 / 6)
    assert measured["map_at_r"] <= 100 * 2 / 6 + 1e-4
