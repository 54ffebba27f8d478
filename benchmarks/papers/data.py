"""The training images, and the test images with their protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.glyphs import load_glyphs
from benchmarks.engine.keyed_items import Images, class_subset
from benchmarks.engine.trial import first_classes
from benchmarks.papers.settings import Settings
from pml_xbn import datasets

_CLASSES = {
    "sop": "StanfordOnlineProducts",
    "in-shop": "InShop",
    "deep-fashion2": "DeepFashion2",
    "vehicle-id": "VehicleID",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "cub": "CUB",
    "cars": "Cars196",
}


@dataclass(frozen=True)
class TaskData:
    """One data set.

    Attributes:
        train: what is trained on.
        queries: test images that are searched for.
        gallery: those that they are searched among; None for all other queries.
        num_classes: number of training classes.
        drawn_galleries: (draws, number of queries), bool: the ``queries`` that a gallery takes, in which the
            others are then searched for; None where the data set fixes what is searched for.
    """

    train: Images
    queries: Images
    gallery: Images | None
    num_classes: int
    drawn_galleries: Tensor | None = None


def load_data(settings: Settings) -> TaskData:
    """Reads the annotations of a data set."""
    if settings.dataset == "glyphs":
        return _glyphs(settings)
    if settings.dataset == "han":
        return _han(settings)
    cls = getattr(datasets, _CLASSES[settings.dataset])

    options = {"protocol": settings.protocol} if settings.dataset == "deep-fashion2" else {}

    def load(split: str) -> Any:
        return cls(settings.root, split, download=settings.download, **options)

    train = _nonempty_subset(load("train"), settings.limit_classes)
    if settings.dataset == "vehicle-id":
        return _with_drawn_galleries(settings, train, load(settings.test_size))
    tests = [_nonempty_subset(load(name), settings.limit_classes) for name in cls.evaluation]
    return _task(train, *tests)


def _with_drawn_galleries(settings: Settings, train: Images, tests: datasets.VehicleID) -> TaskData:
    test = _nonempty_subset(tests, settings.limit_classes)
    # The same in all runs, so that their figures can be compared.
    draws = torch.stack([tests.draw_gallery(seed) for seed in range(settings.gallery_draws)])
    galleries = draws[:, test.positions]
    if galleries.all():
        raise ValueError(
            f"every vehicle of test set {settings.test_size!r} has one image alone, which the gallery takes; "
            "pass a larger --limit-classes or unpack the lists again"
        )
    return replace(_task(train, test), drawn_galleries=galleries)


def _glyphs(settings: Settings) -> TaskData:
    # As in the demo, so that the figures can be compared.
    test = load_glyphs("test", settings.limit_classes, torch.device("cpu"))
    fixed = list(zip(test.images, test.labels.tolist(), strict=True))
    queries = Images(fixed, torch.arange(len(fixed)), test.labels, test.superclasses)
    train = datasets.Glyphs("train")
    return _task(
        _nonempty_subset(train, first_classes(len(train.superclasses), settings.limit_classes)), queries
    )


def _han(settings: Settings) -> TaskData:
    train = datasets.Han("train", settings.root, download=settings.download)
    as_input = partial(torch.div, other=255)  # a lambda could not go to a worker
    tests = datasets.Han("test", settings.root, transform=as_input)
    return _task(*(_nonempty_subset(images, settings.limit_classes) for images in (train, tests)))


def _task(train: Images, queries: Images, gallery: Images | None = None) -> TaskData:
    return TaskData(train, queries, gallery, int(train.labels.max()) + 1)


def _nonempty_subset(dataset: Any, classes: int | None) -> Images:
    images = class_subset(dataset, classes)
    if not len(images):
        raise ValueError(f"--limit-classes {classes} leaves no image of a split; pass a larger number")
    return images
