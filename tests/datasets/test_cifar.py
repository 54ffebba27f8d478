from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from tiny_datasets import (
    CIFAR_PIXELS,
    COARSE_NAMES,
    FINE_NAMES,
    coarse_of,
    write_cifar10,
    write_cifar100,
)

from pml_xbn.datasets import CIFAR10, CIFAR100
from pml_xbn.datasets.image_dataset import ImageDataset

CLASSES = [CIFAR10, CIFAR100]
FOLDERS = {CIFAR10: "cifar-10-batches-py", CIFAR100: "cifar-100-python"}


@pytest.mark.parametrize("cls", CLASSES)
def test_without_torchvision_the_error_says_what_to_install(
    cls: type[ImageDataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    for download in (False, True):
        with pytest.raises(ImportError, match=f"{cls.title} is read by torchvision.*pip install torchvision"):
            cls(tmp_path, download=download)


def test_torchvision_for_another_torch_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("pml_xbn.datasets.torchvision_cifar.import_module", fail)
    with pytest.raises(ImportError, match=r"operator torchvision::nms .*the one that fits your torch"):
        CIFAR10(tmp_path)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    try:
        import_module("torchvision.datasets")
    except (ImportError, RuntimeError) as error:  # the latter: built for another torch
        pytest.skip(f"no torchvision: {error}")
    write_cifar10(tmp_path, monkeypatch)
    write_cifar100(tmp_path, monkeypatch)
    return tmp_path


def test_cifar10_keeps_its_labels_and_names(root: Path) -> None:
    train, test = CIFAR10(root), CIFAR10(root, "test")
    assert train.labels.tolist() == [1, 9, 0, 2, 9, 0, 3, 9, 0, 4, 9, 0, 5, 9, 0]
    assert test.labels.tolist() == [6, 9, 0]
    assert train.label_names == test.label_names == [f"class {number}" for number in range(10)]
    assert train.superclasses is None
    assert train.paths is None


def test_cifar100_adds_the_superclasses(root: Path) -> None:
    for split in CIFAR100.splits:
        dataset = CIFAR100(root, split)
        assert dataset.label_names == FINE_NAMES
        assert dataset.superclass_names == COARSE_NAMES
        assert dataset.superclasses is not None
        assert dataset.superclasses.tolist() == [coarse_of(fine) for fine in range(100)]
    assert CIFAR100(root).labels.tolist() == [99, 4, 4]


@pytest.mark.parametrize("cls", CLASSES)
def test_images_are_those_of_the_file(cls: type[ImageDataset], root: Path) -> None:
    dataset = cls(root)
    for index, row in enumerate(CIFAR_PIXELS):
        # A row holds the red plane, then the green and the blue one.
        assert np.array_equal(np.asarray(dataset[index][0]), row.reshape(3, 32, 32).transpose(1, 2, 0))


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (CIFAR10, "data_batch_3"),
        (CIFAR10, "test_batch"),
        (CIFAR10, "batches.meta"),
        (CIFAR100, "train"),
        (CIFAR100, "test"),
        (CIFAR100, "meta"),
    ],
)
def test_missing_and_broken_files_are_told(cls: type[ImageDataset], name: str, root: Path) -> None:
    file = root / FOLDERS[cls] / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{file.parent} is not {cls.title} as published"):
        cls(root)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=f"{file} is missing.*{cls.homepage}"):
        cls(root)


@pytest.mark.parametrize("cls", CLASSES)
def test_download_is_that_of_torchvision(
    cls: type[ImageDataset], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = root / "new"
    writer = {CIFAR10: write_cifar10, CIFAR100: write_cifar100}[cls]
    theirs = getattr(import_module("torchvision.datasets"), cls.__name__)
    monkeypatch.setattr(theirs, "download", lambda self: writer(Path(self.root), monkeypatch))
    assert len(cls(new, download=True)) == len(cls(root))
