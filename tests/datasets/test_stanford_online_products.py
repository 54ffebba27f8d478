from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny_datasets import EBAY_TRAIN, write_lines, write_stanford_online_products

from pml_xbn.datasets import StanfordOnlineProducts

HEADER = "image_id class_id super_class_id path"
FOLDER = "Stanford_Online_Products"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_stanford_online_products(tmp_path)
    return tmp_path


def test_labels_start_from_0_in_either_half(root: Path) -> None:
    train, test = StanfordOnlineProducts(root), StanfordOnlineProducts(root, "test")
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert train.label_names == ["1", "2"]
    assert test.labels.tolist() == [1, 0, 0]
    assert test.label_names == ["11319", "11320"]
    assert test.paths is not None
    assert test.paths[0] == str(root / FOLDER / "sofa_final" / "221705461164_0.JPG")


def test_superclass_is_the_kind_of_product_that_the_folder_is_named_after(root: Path) -> None:
    for split in ("train", "test"):
        dataset = StanfordOnlineProducts(root, split)
        assert dataset.superclass_names is not None
        assert len(dataset.superclass_names) == 12
        assert dataset.superclasses is not None
        assert dataset.paths is not None
        for path, label in zip(dataset.paths, dataset.labels, strict=True):
            kind = dataset.superclass_names[dataset.superclasses[label]]
            assert Path(path).parent.name == f"{kind}_final"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("3 2 12", "3 columns"),
        ("3 two 12 toaster_final/111265328556_0.JPG", "invalid literal for int"),
        ("3 2 13 toaster_final/111265328556_0.JPG", "13 is not from 1 to 12"),
        ("3 2 0 toaster_final/111265328556_0.JPG", "0 is not from 1 to 12"),
    ],
)
def test_broken_line_is_told_with_its_number(root: Path, line: str, reason: str) -> None:
    write_lines(root / FOLDER / "Ebay_train.txt", [HEADER, *EBAY_TRAIN[:2], line])
    with pytest.raises(ValueError, match=f"Ebay_train.txt, line 4: expected '<image_id> .*{reason}"):
        StanfordOnlineProducts(root)


def test_product_of_two_kinds_is_told(root: Path) -> None:
    lines = [HEADER, *EBAY_TRAIN, "5 2 3 chair_final/1_0.JPG"]
    write_lines(root / FOLDER / "Ebay_train.txt", lines)
    with pytest.raises(ValueError, match=r"Ebay_train.txt, line 6: class 2 has a second super class, 3"):
        StanfordOnlineProducts(root)


def test_missing_header_is_told(root: Path) -> None:
    write_lines(root / FOLDER / "Ebay_train.txt", EBAY_TRAIN)
    with pytest.raises(ValueError, match=f"Ebay_train.txt, line 1: expected '{HEADER}'"):
        StanfordOnlineProducts(root)


def test_only_the_list_of_the_split_is_needed(root: Path) -> None:
    (root / FOLDER / "Ebay_test.txt").unlink()
    assert len(StanfordOnlineProducts(root, "train")) == 4
    with pytest.raises(FileNotFoundError, match=r"Ebay_test\.txt is missing"):
        StanfordOnlineProducts(root, "test")


def test_download_is_that_of_pml(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pytest.importorskip("pytorch_metric_learning.datasets").StanfordOnlineProducts
    new = root / "new"
    monkeypatch.setattr(
        theirs, "download_and_remove", lambda self: write_stanford_online_products(Path(self.root))
    )
    dataset = StanfordOnlineProducts(new, "test", download=True)
    assert dataset.labels.tolist() == [1, 0, 0]
    monkeypatch.setattr(theirs, "download_and_remove", None)
    assert len(StanfordOnlineProducts(new, "train", download=True)) == 4  # it is there


def test_download_with_an_older_pml_says_which_one_to_install(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.datasets", None)
    with pytest.raises(ImportError, match=r'Stanford .*pip install "pytorch-metric-learning>=2.8,<3"'):
        StanfordOnlineProducts(root, download=True)
    assert len(StanfordOnlineProducts(root)) == 4


def test_a_list_that_was_cut_at_the_end_of_a_line_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StanfordOnlineProducts, "official_counts", (len(EBAY_TRAIN), 60_502))
    write_lines(root / FOLDER / "Ebay_train.txt", [HEADER, *EBAY_TRAIN[:3]])
    with pytest.warns(
        UserWarning, match=r"lists 3 images of split 'train' .* official release 4; a list may"
    ):
        assert len(StanfordOnlineProducts(root)) == 3
