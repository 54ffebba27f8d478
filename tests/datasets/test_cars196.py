from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_datasets import (
    CARS,
    write_car_annotations,
    write_cars196,
    write_cars196_devkit,
    write_lines,
    write_mat,
)

from pml_xbn.datasets import Cars196


def test_older_pml_says_which_one_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.datasets", None)
    with pytest.raises(ImportError, match=r'Cars196 .*pip install "pytorch-metric-learning>=2.8,<3"'):
        Cars196(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pytest.importorskip("pytorch_metric_learning.datasets")
    write_cars196(tmp_path)
    return tmp_path


def test_first_98_models_are_for_training(root: Path) -> None:
    train, test = Cars196(root), Cars196(root, "test")
    assert train.label_names == ["Maker Model 14 2012", "Ram C/V Cargo Van Minivan 2012"]
    assert train.labels.tolist() == [0, 1, 0]
    assert test.label_names == ["Eagle Talon Hatchback 1998", "Maker Model 196 2012"]
    assert test.labels.tolist() == [1, 0]
    assert test.superclasses is None


def test_same_images_as_pml(root: Path) -> None:
    from pytorch_metric_learning import datasets

    for split in Cars196.splits:
        ours, theirs = Cars196(root, split), datasets.Cars196(str(root), split)
        assert ours.paths == theirs.paths
        for index in range(len(theirs)):
            assert ours[index][0].tobytes() == theirs[index][0].convert("RGB").tobytes()


@pytest.mark.parametrize("name", ["names.csv", "anno_train.csv", "anno_test.csv"])
def test_missing_list_is_named(root: Path, name: str) -> None:
    (root / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
        Cars196(root)


@pytest.mark.parametrize(
    "line",
    [
        "00002.jpg,3,4,10,98",
        "00002.jpg;3;4;10;9;98",
        "00002.jpg,3,4,x,9,98",
        "00002.jpg,3,4,10,9,0",
        "00002.jpg,3,4,10,9,197",
    ],
)
@pytest.mark.parametrize("name", ["anno_train.csv", "anno_test.csv"])
def test_broken_line_is_told_with_its_number(root: Path, name: str, line: str) -> None:
    lines = (root / name).read_text().splitlines()
    write_lines(root / name, [lines[0], line, *lines[2:]])
    with pytest.raises(ValueError, match=rf"{name}, line 2: expected '<image>,<x1>,.*got '{line}'"):
        Cars196(root)


def test_names_that_end_early_are_told(root: Path) -> None:
    write_lines(root / "names.csv", (root / "names.csv").read_text().splitlines()[:50])
    with pytest.raises(ValueError, match=r"anno_train.csv, line 2: .*98 is not from 1 to 50"):
        Cars196(root)


def test_download_is_that_of_pml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pytest.importorskip("pytorch_metric_learning.datasets").Cars196
    monkeypatch.setattr(theirs, "download_and_remove", lambda self: write_cars196(Path(self.root)))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "other").touch()  # into which PML would download nothing
    assert len(Cars196(tmp_path / "new", download=True)) == 3


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    pytest.importorskip("scipy")
    write_cars196_devkit(tmp_path)
    return tmp_path


def test_devkit_gives_what_the_copy_gives(devkit: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("pytorch_metric_learning.datasets")
    copy = tmp_path_factory.mktemp("copy")
    write_cars196(copy)
    for split in Cars196.splits:
        ours, theirs = Cars196(devkit, split), Cars196(copy, split)
        assert ours.labels.tolist() == theirs.labels.tolist()
        assert ours.label_names == theirs.label_names


def test_devkit_splits_by_model_over_both_folders(devkit: Path) -> None:
    assert Cars196(devkit).paths == [
        str(devkit / image)
        for image in ("cars_train/00001.jpg", "cars_train/00002.jpg", "cars_test/00001.jpg")
    ]
    test = Cars196(devkit, "test")
    assert test.paths == [str(devkit / image) for image in ("cars_train/00003.jpg", "cars_test/00002.jpg")]
    assert test.label_names == ["Eagle Talon Hatchback 1998", "Maker Model 196 2012"]
    assert [test[index][1] for index in range(2)] == [1, 0]


def test_devkit_may_lie_in_root(devkit: Path) -> None:
    expected = Cars196(devkit).paths
    for file in (devkit / "devkit").iterdir():
        file.rename(devkit / file.name)
    assert Cars196(devkit).paths == expected


def test_devkit_is_read_by_any_pml(devkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.datasets", None)
    assert len(Cars196(devkit)) == 3


def test_without_scipy_the_error_names_the_extra(devkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(ImportError, match=r'cars_meta.mat is read by SciPy .*"pml_xbn\[examples\]"'):
        Cars196(devkit)


@pytest.mark.parametrize(
    "name", ["devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat"]
)
def test_missing_or_broken_file_of_the_devkit_is_named(devkit: Path, name: str) -> None:
    content = (devkit / name).read_bytes()
    for part in (b"<html>", content[:200], b""):
        (devkit / name).write_bytes(part)
        with pytest.raises(ValueError, match=rf"{name} (is no file of MATLAB|lacks ')"):
            Cars196(devkit)
    (devkit / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{Path(name).name} is missing"):
        Cars196(devkit)


def test_list_without_labels_is_told(devkit: Path) -> None:
    rows = np.array([(3, "00001.jpg")], dtype=[("bbox_x1", object), ("fname", object)])
    write_mat(devkit / "cars_test_annos_withlabels.mat", "annotations", rows)
    with pytest.raises(
        ValueError, match=r"withlabels.mat: its annotations have the fields bbox_x1, fname, not"
    ):
        Cars196(devkit)


@pytest.mark.parametrize("number", [0, 197])
def test_model_that_has_no_name_is_told(devkit: Path, number: int) -> None:
    write_car_annotations(devkit / "devkit/cars_train_annos.mat", [*CARS["train"], ("00004.jpg", number)])
    with pytest.raises(ValueError, match=rf": 00004.jpg is of model {number}, not one from 1 to 196"):
        Cars196(devkit)
