from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny_datasets import write_cars196, write_lines

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
    assert len(Cars196(tmp_path / "new", download=True)) == 3
