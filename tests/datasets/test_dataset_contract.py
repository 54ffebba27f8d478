"""What every dataset of image files promises."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny_datasets
import torch
from PIL.Image import Image
from torch.utils.data import DataLoader

from pml_xbn import datasets
from pml_xbn.datasets.image_dataset import ImageDataset

WRITERS = tiny_datasets.WRITERS
SPLITS = [(name, split) for name in WRITERS for split in getattr(datasets, name).splits]


def skip_unless_readable(name: str) -> None:
    if name in ("CUB", "Cars196"):
        pytest.importorskip("pytorch_metric_learning.datasets")
    if name.startswith("CIFAR"):
        try:
            import torchvision.datasets  # noqa: F401
        except (ImportError, RuntimeError) as error:  # the latter: built for another torch
            pytest.skip(f"no torchvision: {error}")


Load = Callable[..., ImageDataset]


@pytest.fixture
def load(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Writes the dataset of that name and loads its splits."""

    def write_and_load(name: str, split: str, **arguments: object) -> ImageDataset:
        skip_unless_readable(name)
        root = tmp_path / name
        if not root.exists():
            root.mkdir()
            WRITERS[name](root, *([monkeypatch] if name.startswith("CIFAR") else []))
        dataset: ImageDataset = getattr(datasets, name)(root, split, **arguments)
        return dataset

    return write_and_load


def test_every_public_dataset_of_images_is_tested_here() -> None:
    assert set(WRITERS) == set(datasets.__all__) - {"Glyphs", "Han"}


@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_tensors_and_names_fit_each_other(load: Load, name: str, split: str) -> None:
    dataset = load(name, split)
    assert dataset.split == split
    assert dataset.labels.shape == (len(dataset),)
    assert dataset.labels.dtype == torch.int64
    assert dataset.labels.min() >= 0
    assert dataset.labels.max() < len(dataset.label_names)
    assert len(set(dataset.label_names)) == len(dataset.label_names)
    if dataset.superclasses is None:
        assert dataset.superclass_names is None
    else:
        assert dataset.superclass_names is not None
        assert dataset.superclasses.shape == (len(dataset.label_names),)
        assert dataset.superclasses.dtype == torch.int64
        assert dataset.superclasses.min() >= 0
        assert dataset.superclasses.max() < len(dataset.superclass_names)


@pytest.mark.parametrize("name", WRITERS)
def test_the_splits_of_an_evaluation_number_their_labels_alike_from_0(load: Load, name: str) -> None:
    cls = getattr(datasets, name)
    assert set(cls.evaluation) <= set(cls.get_available_splits())
    assert len(cls.evaluation) in (1, 2)
    parts = [load(name, split) for split in cls.evaluation]
    if not name.startswith("CIFAR"):  # the tiny one has no image of some classes
        used = torch.cat([part.labels for part in parts]).unique()
        assert used.tolist() == list(range(len(parts[0].label_names)))
    for part in parts[1:]:
        assert part.label_names == parts[0].label_names
        if part.superclasses is not None:
            assert part.superclasses.tolist() == parts[0].superclasses.tolist()


@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_fewer_images_than_the_official_ones_are_told(
    load: Load, name: str, split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = getattr(datasets, name)
    official = dict(zip(cls.splits, cls.official_counts, strict=True))[split]
    with pytest.warns(
        UserWarning, match=rf"of split '{split}' .* the official release {official:,};"
    ) as told:
        count = len(load(name, split))
    assert f" lists {count} images " in str(told[0].message)
    monkeypatch.setattr(cls, "official_counts", [count] * len(cls.splits))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(name, split)


@pytest.mark.parametrize("name", WRITERS)
def test_superclasses_have_the_same_numbers_in_all_splits(load: Load, name: str) -> None:
    names = [load(name, split).superclass_names for split in getattr(datasets, name).splits]
    assert all(other == names[0] for other in names)


@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_every_image_is_rgb_and_has_an_integer_label(load: Load, name: str, split: str) -> None:
    dataset = load(name, split)
    for index in range(len(dataset)):
        image, label = dataset[index]
        assert image.mode == "RGB"
        assert type(label) is int
        assert label == dataset.labels[index]
    with pytest.raises(IndexError):
        dataset[len(dataset)]


@pytest.mark.parametrize("name", WRITERS)
def test_transforms_are_applied(load: Load, name: str) -> None:
    dataset = load(name, "train", transform=lambda image: image.size, target_transform=str)
    size, label = dataset[0]
    assert all(type(side) is int for side in size)
    assert label == str(int(dataset.labels[0]))


@pytest.mark.parametrize("name", WRITERS)
def test_a_copy_for_a_worker_of_a_loader_is_complete(load: Load, name: str) -> None:
    dataset = load(name, "train", transform=to_tensor)
    copy = pickle.loads(pickle.dumps(dataset))
    images, labels = next(iter(DataLoader(copy, batch_size=2)))
    assert images.shape == (2, 3, 4, 4)
    assert labels.tolist() == dataset.labels[:2].tolist()


def to_tensor(image: Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((4, 4)))).movedim(-1, 0)


@pytest.mark.parametrize("name", WRITERS)
def test_root_may_be_a_string_in_the_home_folder(
    load: Load, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = load(name, "train")
    monkeypatch.setenv("HOME", str(dataset.root.parent))
    again = type(dataset)(f"~/{name}")
    assert again.root == dataset.root
    assert again.labels.tolist() == dataset.labels.tolist()


@pytest.mark.parametrize("name", WRITERS)
def test_unknown_split_names_it_and_the_valid_ones(tmp_path: Path, name: str) -> None:
    cls = getattr(datasets, name)
    with pytest.raises(ValueError, match="split is 'val'; choose one of 'train', '"):
        cls(tmp_path, "val")


@pytest.mark.parametrize("name", ["DeepFashion2", "InShop", "VehicleID"])
def test_no_direct_download_points_to_the_official_page(tmp_path: Path, name: str) -> None:
    cls = getattr(datasets, name)
    with pytest.raises(ValueError, match=cls.homepage):
        cls(tmp_path / "new", download=True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("name", "split"), SPLITS)
def test_an_empty_folder_names_a_file_and_the_official_page(tmp_path: Path, name: str, split: str) -> None:
    skip_unless_readable(name)
    cls = getattr(datasets, name)
    with pytest.raises(FileNotFoundError, match=f"(?s){tmp_path}.* is missing.*{cls.homepage}"):
        cls(tmp_path, split)


FILES = [(name, split) for name, split in SPLITS if not name.startswith("CIFAR")]


@pytest.mark.parametrize(("name", "split"), FILES)
def test_missing_first_image_is_told_at_once(load: Load, name: str, split: str) -> None:
    dataset = load(name, split)
    assert dataset.paths is not None
    Path(dataset.paths[0]).unlink()
    with pytest.raises(FileNotFoundError, match=f"{dataset.paths[0]} is missing.*{dataset.homepage}"):
        load(name, split)


@pytest.mark.parametrize(("name", "split"), FILES)
def test_missing_image_is_told_on_access(load: Load, name: str, split: str) -> None:
    dataset = load(name, split)
    assert dataset.paths is not None
    Path(dataset.paths[-1]).unlink()
    with pytest.raises(FileNotFoundError, match=f"{dataset.paths[-1]} is missing.*{dataset.homepage}"):
        dataset[-1]


@pytest.mark.parametrize("content", [b"<html>", b"", None], ids=["no image", "empty", "truncated"])
@pytest.mark.parametrize(("name", "split"), FILES)
def test_broken_image_is_named(load: Load, name: str, split: str, content: bytes | None) -> None:
    dataset = load(name, split)
    assert dataset.paths is not None
    path = Path(dataset.paths[0])
    path.write_bytes(path.read_bytes()[:-40] if content is None else content)
    with pytest.raises(ValueError, match=f"{path} is no whole image"):
        dataset[0]


def test_an_error_of_the_file_system_is_not_taken_for_a_broken_image(load: Load) -> None:
    dataset = load("InShop", "train")
    assert dataset.paths is not None
    Path(dataset.paths[0]).unlink()
    Path(dataset.paths[0]).mkdir()
    with pytest.raises(IsADirectoryError):
        dataset[0]


def test_without_pillow_the_error_names_the_extra(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = load("InShop", "train")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'pip install "pml_xbn\[examples\]"'):
        dataset[0]


@pytest.mark.parametrize("name", ["DeepFashion2", "InShop", "StanfordOnlineProducts", "VehicleID"])
def test_annotations_are_read_without_pillow(load: Load, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = load(name, "train").labels
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert load(name, "train").labels.tolist() == labels.tolist()
