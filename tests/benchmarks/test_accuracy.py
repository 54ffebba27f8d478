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
    ours = retrieval_accuracy(*queries, *gallery, recall_at=(1, 10, 100), part_size=part)
    include = ("precision_at_1", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include, k=200, device=torch.device("cpu"))
    theirs = calculator.get_accuracy(*queries, *gallery)
    assert ours["recall_at_1"] == pytest.approx(100 * theirs["precision_at_1"], rel=1e-12)
    assert ours["map_at_r"] == pytest.approx(100 * theirs["mean_average_precision_at_r"], rel=1e-12)
    assert ours["recall_at_1"] < ours["recall_at_10"] <= ours["recall_at_100"]


@pytest.mark.parametrize("with_gallery", [False, True])
def test_search_by_torch_finds_what_faiss_finds(with_gallery: bool) -> None:
    queries, gallery = images(100, 20, 1)[0], images(150, 20, 2)[0] if with_gallery else None
    (_, distances, places), *_ = neighbours(queries, gallery, 9)
    references = queries if gallery is None else gallery
    found, at = by_products(references.double())(queries.double(), 10)
    first = 0 if with_gallery else 1  # itself
    assert torch.equal(at[:, first : first + 9], places)
    torch.testing.assert_close(found[:, first : first + 9].float(), distances, rtol=1e-4, atol=1e-5)


def test_memory_is_that_of_a_part() -> None:
    queries, _ = images(300, 20, 1)
    parts = list(neighbours(queries, None, 7, part_size=32))
    assert [part.stop for part, *_ in parts] == [*range(32, 300, 32), 300]
    assert {places.shape for _, _, places in parts[:-1]} == {(32, 7)}


def test_equal_embeddings_leave_nobody_out() -> None:
    rows = torch.ones(6, 4)
    for _, _, places in neighbours(rows, None, 5):
        assert places.shape == (6, 5)


def test_hits_of_the_classes_add_up_to_recall() -> None:
    queries, labels = images(300, 20, 1)
    labels *= 3  # numbers of classes need not be next to each other
    distances = torch.cdist(queries.double(), queries.double()).fill_diagonal_(torch.inf)
    right = labels[distances.argmin(dim=1)] == labels
    hits, numbers = (hits_by_class(queries, labels)[name] for name in ("hits", "images"))
    classes = labels.unique().tolist()
    assert hits == [int(right[labels == label].sum()) for label in classes]
    assert numbers == [int((labels == label).sum()) for label in classes]
