from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tiny_datasets import clothing, write_deep_fashion_2

from pml_xbn.datasets import DeepFashion2

BROKEN = "validation/annos/000002.json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_deep_fashion_2(tmp_path)
    return tmp_path


def names(dataset: DeepFashion2) -> list[str]:
    return [dataset.label_names[label] for label in dataset.labels]


def test_training_set_holds_styled_items_of_consumers_and_shops(root: Path) -> None:
    train = DeepFashion2(root)
    top = "pair 1, short sleeve top, style 1"
    assert names(train) == [
        top,
        top,
        "pair 2, skirt, style 2",
        "pair 2, short sleeve top, style 2",
    ]
    assert train.labels.tolist() == [0, 0, 2, 1]


def test_queries_are_styled_items_of_consumers(root: Path) -> None:
    query = DeepFashion2(root, "query")
    assert names(query) == ["pair 7, short sleeve dress, style 3", "pair 5, sling dress, style 1"]
    assert query.paths is not None
    assert [Path(path).name for path in query.paths] == ["000001.jpg", "000003.jpg"]


def test_gallery_holds_all_items_of_shops_with_the_labels_of_the_queries(root: Path) -> None:
    query, gallery = DeepFashion2(root, "query"), DeepFashion2(root, "gallery")
    assert names(gallery) == [
        "pair 7, short sleeve dress, style 3",
        "pair 7, short sleeve dress, style 1",
        "pair 5, sling dress, style 1",
        "pair 5, sling, style 0",
    ]
    assert query.label_names == gallery.label_names


def test_superclass_is_the_category(root: Path) -> None:
    for split in DeepFashion2.splits:
        dataset = DeepFashion2(root, split)
        assert dataset.superclasses is not None
        assert dataset.superclass_names is not None
        assert len(dataset.superclass_names) == 13
        for name, number in zip(dataset.label_names, dataset.superclasses, strict=True):
            assert name.split(", ")[1] == dataset.superclass_names[number]


def test_image_is_the_ground_truth_box(root: Path) -> None:
    picture = Image.effect_noise((12, 10), 60).convert("RGB")
    picture.save(root / "train" / "image" / "000001.jpg")
    with Image.open(root / "train" / "image" / "000001.jpg") as saved:
        pixels = {(x, y): saved.getpixel((x + 2, y + 1)) for x in range(6) for y in range(8)}
    image, _ = DeepFashion2(root)[0]
    assert image.size == (6, 8)
    assert {spot: image.getpixel(spot) for spot in pixels} == pixels


def test_items_follow_their_numbers_whatever_their_order_in_the_file(root: Path) -> None:
    items = {f"item{number}": clothing(1, number) for number in (11, 2, 1, 10)}
    (root / "train/annos/000001.json").write_text(json.dumps({**items, "source": "shop", "pair_id": 9}))
    styles = [name.split()[-1] for name in names(DeepFashion2(root)) if name.startswith("pair 9")]
    assert styles == ["1", "2", "10", "11"]


def test_image_without_items_is_left_out(root: Path) -> None:
    (root / "train/annos/000001.json").write_text(json.dumps({"source": "shop", "pair_id": 9}))
    assert len(DeepFashion2(root)) == 3


def test_edges_between_pixels_are_rounded(root: Path) -> None:
    edit(root, "train/annos/000001.json", lambda a: a["item1"].update(bounding_box=[1.4, 0.6, 8.5, 9]))
    assert DeepFashion2(root).boxes[0].tolist() == [1, 1, 8, 9]


def edit(root: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    annotation = json.loads((root / name).read_text())
    change(annotation)
    (root / name).write_text(json.dumps(annotation))


@pytest.mark.parametrize(
    "content", [b"", b'{"source": "shop", "pair_id": 7', b"\xff\xd8\xff\xe0", b"{'a': 1}"]
)
def test_broken_json_names_the_file(root: Path, content: bytes) -> None:
    (root / BROKEN).write_bytes(content)
    with pytest.raises(ValueError, match=f"{BROKEN} is no JSON"):
        DeepFashion2(root, "query")


def test_json_of_something_else_names_the_file(root: Path) -> None:
    (root / BROKEN).write_text("[1, 2]")
    with pytest.raises(ValueError, match=f"{BROKEN} holds no JSON object"):
        DeepFashion2(root, "query")


@pytest.mark.parametrize("key", ["source", "pair_id"])
def test_missing_key_of_an_image_is_named(root: Path, key: str) -> None:
    edit(root, BROKEN, lambda annotation: annotation.pop(key))
    with pytest.raises(ValueError, match=f"{BROKEN} lacks '{key}'"):
        DeepFashion2(root, "gallery")


@pytest.mark.parametrize("key", ["category_id", "style", "bounding_box"])
def test_missing_key_of_an_item_is_named(root: Path, key: str) -> None:
    edit(root, BROKEN, lambda annotation: annotation["item2"].pop(key))
    with pytest.raises(ValueError, match=f"{BROKEN} lacks '{key}' of 'item2'"):
        DeepFashion2(root, "gallery")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("source", "web"),
        ("source", ["user"]),
        ("pair_id", "7"),
        ("pair_id", 7.5),
        ("pair_id", True),
        ("item1", 3),
    ],
)
def test_wrong_value_of_an_image_is_named(root: Path, key: str, value: object) -> None:
    edit(root, BROKEN, lambda annotation: annotation.update({key: value}))
    with pytest.raises(ValueError, match=f"{BROKEN}: '{key}' cannot be "):
        DeepFashion2(root, "gallery")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("category_id", 0),
        ("category_id", 14),
        ("category_id", "vest"),
        ("style", -1),
        ("style", None),
        ("bounding_box", [1, 2, 3]),
        ("bounding_box", [1, 2, 3, "4"]),
        ("bounding_box", [0, 0, float("inf"), 4]),
        ("bounding_box", [0, float("nan"), 5, 4]),
        ("bounding_box", {"x1": 0}),
    ],
)
def test_wrong_value_of_an_item_is_named(root: Path, key: str, value: object) -> None:
    edit(root, BROKEN, lambda annotation: annotation["item1"].update({key: value}))
    with pytest.raises(ValueError, match=f"{BROKEN}: '{key}' of 'item1' cannot be "):
        DeepFashion2(root, "gallery")


def test_folder_without_annotations_is_told(root: Path) -> None:
    for file in (root / "train" / "annos").iterdir():
        file.unlink()
    with pytest.raises(FileNotFoundError, match=r"train/annos/000001.json is missing"):
        DeepFashion2(root)


def test_test_split_is_not_offered(root: Path) -> None:
    with pytest.raises(ValueError, match="split is 'test'; choose one of 'train', 'query', 'gallery'"):
        DeepFashion2(root, "test")


def test_a_bar_counts_the_files(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    DeepFashion2(root)
    assert "annotations of DeepFashion2: 100%" in capfd.readouterr().err


def test_reads_without_tqdm(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert len(DeepFashion2(root)) == 4
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("box", [[5, 2, 5, 4], [5, 4, 6, 2], [5.1, 2, 5.3, 4]])
def test_item_whose_box_holds_no_pixel_is_skipped_and_counted(root: Path, box: list[float]) -> None:
    edit(root, BROKEN, lambda annotation: annotation["item2"].update(bounding_box=box))
    with pytest.warns(UserWarning, match="'gallery' of DeepFashion2 is read without 1 items") as told:
        gallery = DeepFashion2(root, "gallery")
    assert "lists 4 images" in str(told[1].message)  # what is skipped is not missing
    assert names(gallery) == [
        "pair 7, short sleeve dress, style 3",
        "pair 5, sling dress, style 1",
        "pair 5, sling, style 0",
    ]
    assert len(gallery.boxes) == 3
    assert gallery.label_names == DeepFashion2(root, "query").label_names


@pytest.mark.parametrize(("folder", "split"), [("train", "train"), ("validation", "query")])
def test_files_of_macos_are_skipped_and_counted(root: Path, folder: str, split: str) -> None:
    expected = names(DeepFashion2(root, split))
    for name in ("._000001.json", "._000002.json"):
        (root / folder / "annos" / name).write_bytes(b"\x00\x05\x16\x07\x00\x02")
    with pytest.warns(UserWarning, match=rf"'{split}' .* and without 2 files that macOS left there"):
        assert names(DeepFashion2(root, split)) == expected


def test_folder_with_files_of_macos_alone_is_empty(root: Path) -> None:
    for file in (root / "train" / "annos").iterdir():
        file.rename(file.with_name(f"._{file.name}"))
    with pytest.raises(FileNotFoundError, match=r"train/annos/000001.json is missing"):
        DeepFashion2(root)


def test_class_of_xbm_is_a_pair_and_a_style_whatever_the_category(root: Path) -> None:
    train = DeepFashion2(root, protocol="xbm")
    assert names(train) == ["pair 1, style 1"] * 2 + ["pair 2, style 2"] * 2
    assert train.superclasses is not None
    assert train.superclass_names is not None
    skirt_or_top = train.superclasses[train.labels[-1]]
    assert train.superclass_names[skirt_or_top] == "skirt"  # that of the first item


def test_match_in_another_category_counts_for_xbm_alone(root: Path) -> None:
    edit(root, BROKEN, lambda annotation: annotation["item1"].update(category_id=12))
    matches = {
        protocol: len(
            set(names(DeepFashion2(root, "query", protocol=protocol)))
            & set(names(DeepFashion2(root, "gallery", protocol=protocol)))
        )
        for protocol in ("axbn", "xbm")
    }
    assert matches == {"axbn": 1, "xbm": 2}


def test_protocols_share_their_items(root: Path) -> None:
    for split in DeepFashion2.splits:
        ours, theirs = (DeepFashion2(root, split, protocol=protocol) for protocol in ("axbn", "xbm"))
        assert ours.paths == theirs.paths
        assert ours.boxes.tolist() == theirs.boxes.tolist()


def test_queries_and_gallery_are_read_once_unless_a_file_changes(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")

    def bars() -> int:
        for split in DeepFashion2.splits:
            DeepFashion2(root, split)
        return capfd.readouterr().err.count("100%")

    assert [bars(), bars()] == [2, 1]  # training, validation
    edit(root, BROKEN, lambda annotation: annotation["item1"].update(category_id=12))
    assert bars() == 2
    assert "pair 7, vest dress, style 3" in names(DeepFashion2(root, "gallery"))


def test_unknown_protocol_is_told(root: Path) -> None:
    with pytest.raises(ValueError, match="protocol is 'official'; choose one of 'axbn', 'xbm'"):
        DeepFashion2(root, protocol="official")
