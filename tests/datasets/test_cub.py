from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny_datasets import write_cub, write_lines

from pml_xbn.datasets import CUB

FOLDER = "CUB_200_2011"


def test_older_pml_says_which_one_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.datasets", None)
    with pytest.raises(ImportError, match=r'CUB-200-2011 .*pip install "pytorch-metric-learning>=2.8,<3"'):
        CUB(tmp_path)


def test_without_pillow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'pip install "pml_xbn\[examples\]"'):
        CUB(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pytest.importorskip("pytorch_metric_learning.datasets")
    write_cub(tmp_path)
    return tmp_path


def test_first_hundred_classes_are_for_training(root: Path) -> None:
    train, test = CUB(root), CUB(root, "test")
    assert train.label_names == ["001.Black_footed_Albatross", "100.Brown_Pelican"]
    assert train.labels.tolist() == [0, 0, 1]
    assert test.label_names == ["101.White_Pelican", "200.Common_Yellowthroat"]
    assert test.labels.tolist() == [0, 1]
    assert test.superclasses is None


def test_same_images_as_pml(root: Path) -> None:
    from pytorch_metric_learning import datasets

    for split in CUB.splits:
        ours, theirs = CUB(root, split), datasets.CUB(str(root), split)
        assert ours.paths == theirs.paths
        for index, label in enumerate(theirs.labels):
            image, number = ours[index]
            assert image.tobytes() == theirs[index][0].convert("RGB").tobytes()
            assert ours.label_names[number].startswith(f"{label:03}.")


@pytest.mark.parametrize("name", ["images.txt", "image_class_labels.txt"])
def test_missing_list_is_named(root: Path, name: str) -> None:
    (root / FOLDER / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
        CUB(root)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("images.txt", "3"),
        ("images.txt", "three 100.Brown_Pelican/a.jpg"),
        ("image_class_labels.txt", "3 100 1"),
        ("image_class_labels.txt", "3 Pelican"),
        ("image_class_labels.txt", "3 0"),
        ("image_class_labels.txt", "3 201"),
    ],
)
def test_broken_line_is_told_with_its_number(root: Path, name: str, line: str) -> None:
    lines = (root / FOLDER / name).read_text().splitlines()
    write_lines(root / FOLDER / name, [*lines[:2], line, *lines[3:]])
    with pytest.raises(ValueError, match=rf"{name}, line 3: expected '<image_id> .*got '{line}'"):
        CUB(root)


@pytest.mark.parametrize("name", ["images.txt", "image_class_labels.txt"])
def test_lists_of_different_images_are_told(root: Path, name: str) -> None:
    lines = (root / FOLDER / name).read_text().splitlines()
    write_lines(root / FOLDER / name, lines[:-1])
    with pytest.raises(
        ValueError, match=r"images.txt and .*image_class_labels.txt do not list the same image ids"
    ):
        CUB(root)


def test_download_is_that_of_pml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pytest.importorskip("pytorch_metric_learning.datasets").CUB
    monkeypatch.setattr(theirs, "download_and_remove", lambda self: write_cub(Path(self.root)))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "other").touch()  # into which PML would download nothing
    assert len(CUB(tmp_path / "new", download=True)) == 3
