"""Two views of every training image, and the images that kNN accuracy is measured on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.distortion import distort
from benchmarks.engine.glyphs import load_glyphs
from benchmarks.engine.keyed_items import Images, KeyedItems, Transform, class_subset, load
from benchmarks.engine.randomness import generator_for
from benchmarks.moco.settings import Settings
from pml_xbn.datasets import CIFAR10, CIFAR100

_CIFAR = {"cifar10": CIFAR10, "cifar100": CIFAR100}
# Per channel, of the training images; those of PML's notebook, which are CIFAR-10's.
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_TEST_BATCH = 512


# Images (n, C, H, W) and labels (n,) of a part; all parts, each time anew.
Labelled = Iterable[tuple[Tensor, Tensor]]


def epoch_batches(size: int, batch_size: int, seed: int, epoch: int) -> Tensor:
    """Returns positions of images in random order, (steps, batch_size), without the last part of a batch."""
    order = torch.randperm(size, generator=generator_for(seed, epoch, "order"))
    steps = size // batch_size
    return order[: steps * batch_size].view(steps, batch_size)


class GlyphPairs:
    """Glyphs, where a view is a random distortion, as in the retrieval task.

    No training image shows a class of the test images, so each of these is searched for among all others,
    under one fixed distortion.

    Attributes:
        summary: says in words what there is.
        identity: differs where the images do.
        train_labels: (N,) labels of the training images, of which training makes no use.
        queries: test images whose class is to be told.
        gallery: labelled images to tell it from; None for all other test images.
    """

    gallery: Labelled | None = None

    def __init__(self, settings: Settings, device: torch.device) -> None:
        train, test = (load_glyphs(split, settings.classes, device) for split in ("train", "test"))
        self.images, self.train_labels, self.seed = train.images, train.labels, settings.seed
        self.queries: Labelled = [(test.images, test.labels)]
        self.identity = train.checksum
        self.summary = (
            f"{train.name}: {len(self.images)} training images; {len(test.images)} test images of other "
            "classes, each searched for among all others"
        )

    def pairs(self, batches: Mapping[int, Tensor], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields two views (B, C, H, W) of every batch of positions, which are given by step."""
        for step, batch in batches.items():
            images = self.images[batch.to(self.images.device)]
            queries, keys = (generator_for(self.seed, epoch, step, name) for name in ("queries", "keys"))
            yield distort(images, queries), distort(images, keys)


class CIFARPairs:
    """CIFAR, augmented as in PML's notebook; test images are classified by the training images.

    It has what `GlyphPairs` has.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        cls = _CIFAR[settings.dataset]
        train = cls(settings.root, "train", download=settings.download)
        test = class_subset(cls(settings.root, "test"), settings.classes)
        self._settings, self._device = settings, device
        self._train, (view, test_view) = class_subset(train, settings.classes), _transforms()
        self._views = KeyedItems(self._train, partial(_two, view), settings.seed)
        self.train_labels = self._train.labels
        self.identity: str = settings.dataset
        self.gallery, self.queries = (
            _in_order(images, test_view, settings.workers) for images in (self._train, test)
        )
        self.summary = (
            f"{train.title}: {len(self._train)} training images; {len(test)} test images, each classified "
            "by the training images"
        )

    def pairs(self, batches: Mapping[int, Tensor], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        keys = [[(epoch, step, *key) for key in enumerate(batch.tolist())] for step, batch in batches.items()]
        for (queries, targets), _ in load(self._views, keys, self._settings.workers):
            yield queries.to(self._device), targets.to(self._device)


MoCoData = GlyphPairs | CIFARPairs


def load_data(settings: Settings) -> MoCoData:
    """Reads a data set."""
    device = torch.device(settings.device)
    data = (GlyphPairs if settings.dataset == "glyphs" else CIFARPairs)(settings, device)
    available = len(data.train_labels)
    if available < settings.batch_size:
        raise ValueError(
            f"batch_size is {settings.batch_size}, but there are {available} training images; pass "
            "smaller batches or more classes"
        )
    return data


def _two(view: Transform, image: Any) -> tuple[Tensor, Tensor]:
    return view(image), view(image)


def _in_order(images: Images, view: Transform, workers: int) -> Labelled:
    parts = torch.arange(len(images)).split(_TEST_BATCH)
    return load(KeyedItems(images, view, 0), [[(i,) for i in part.tolist()] for part in parts], workers)


def _transforms() -> tuple[Transform, Transform]:
    """Returns the transforms of training and of testing."""
    from torchvision import transforms

    finish: list[Any] = [transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)]
    train = [
        transforms.RandomResizedCrop(32),
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        transforms.RandomGrayscale(0.2),
    ]
    return transforms.Compose([*train, *finish]), transforms.Compose(finish)
