"""CIFAR-10 and CIFAR-100, where test images are classified by the training images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.engine.randomness import seed_for
from benchmarks.moco.data import Labelled, first_classes
from benchmarks.moco.settings import Settings
from pml_xbn.datasets import CIFAR10, CIFAR100

_DATASETS = {"cifar10": CIFAR10, "cifar100": CIFAR100}

# Per channel, of the training images; those of PML's notebook, which are CIFAR-10's.
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

_TEST_BATCH = 512


class CIFARPairs:
    """The `MoCoData` of CIFAR, augmented as in PML's notebook.

    Args:
        settings: ``dataset``, ``classes`` and ``seed``.
        root: the folder of the data set.
        device: where batches are put.
        workers: loading processes; 0 for none.
        download: download it into ``root`` unless it is there.

    Raises:
        FileNotFoundError, ImportError, ValueError: as `pml_xbn.datasets.CIFAR10`.
    """

    gallery: Labelled | None

    def __init__(
        self, settings: Settings, root: Path, device: torch.device, workers: int, download: bool
    ) -> None:
        cls = _DATASETS[settings.dataset]
        train, test = cls(root, "train", download=download), cls(root, "test")
        self._train_view, test_view = _transforms()
        self._positions = first_classes(train.labels, settings.classes)
        self._train, self.train_labels = train, train.labels[self._positions]
        self._seed, self._device, self._workers = settings.seed, device, workers

        def labelled(dataset: Any, positions: Tensor) -> Labelled:
            views = _Views(dataset, test_view, views=1)
            keys = [[(int(i),) for i in part] for part in positions.split(_TEST_BATCH)]
            return Labelled(_FirstViews(self._loader(views, keys), device), dataset.labels[positions])

        self.gallery = labelled(train, self._positions)
        self.queries = labelled(test, first_classes(test.labels, settings.classes))
        self.identity = settings.dataset
        self.summary = (
            f"{train.title}: {len(self.train_labels)} training images; "
            f"{len(self.queries.labels)} test images, "
            "each classified by the training images"
        )

    def pairs(
        self, batches: Tensor, epoch: int, steps: Sequence[int] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        keys = [
            [(self._seed, epoch, step, *key) for key in enumerate(self._positions[batches[step]].tolist())]
            for step in (range(len(batches)) if steps is None else steps)
        ]
        for queries, targets in self._loader(_Views(self._train, self._train_view, views=2), keys):
            yield queries.to(self._device), targets.to(self._device)

    def _loader(self, views: _Views, keys: list[list[_Key]]) -> DataLoader[Any]:
        # With a generator of its own the loader leaves the default one as it is.
        return DataLoader(views, batch_sampler=keys, num_workers=self._workers, generator=torch.Generator())


_Key = tuple[int, ...]


class _Views(Dataset[tuple[Tensor, ...]]):
    """Views of an image under a key, whose last number is the image's position.

    Augmentation depends on the key alone, whichever process loads the image.
    """

    def __init__(self, images: Any, transform: Callable[[Any], Tensor], views: int) -> None:
        self.images, self.transform, self.views = images, transform, views

    def __getitem__(self, key: _Key) -> tuple[Tensor, ...]:
        image, _ = self.images[key[-1]]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for("views", *key))
            return tuple(self.transform(image) for _ in range(self.views))


class _FirstViews:
    """The batches of a loader on a device, as often as they are asked for."""

    def __init__(self, loader: DataLoader[Any], device: torch.device) -> None:
        self.loader, self.device = loader, device

    def __iter__(self) -> Iterator[Tensor]:
        for (images,) in self.loader:
            yield images.to(self.device)


def _transforms() -> tuple[Callable[[Any], Tensor], Callable[[Any], Tensor]]:
    """Those of training and of testing."""
    from torchvision import transforms

    finish = [transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)]
    train = [
        transforms.RandomResizedCrop(32),
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        transforms.RandomGrayscale(0.2),
    ]
    return transforms.Compose([*train, *finish]), transforms.Compose(finish)
