from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_datasets import IN_SHOP, in_shop_lines, write_in_shop, write_lines

from pml_xbn.datasets import InShop

LIST = "Eval/list_eval_partition.txt"
rows = st.builds(
    lambda gender, category, item, photo, status: (
        f"img/{gender}/{category}/{item}/{photo:02}_1_front.jpg",
        item,
        status,
    ),
    st.sampled_from(["MEN", "WOMEN"]),
    st.sampled_from(["Denim", "Dresses", "Skirts"]),
    st.integers(1, 12).map(lambda number: f"id_{number:08}"),
    st.integers(1, 9),
    st.sampled_from(["train", "query", "gallery"]),
)


def test_items_get_labels_in_order_of_their_ids(tmp_path: Path) -> None:
    write_in_shop(tmp_path)
    train, query, gallery = (InShop(tmp_path, split) for split in InShop.splits)
    assert train.label_names == ["id_00000002", "id_00000005"]
    assert train.labels.tolist() == [0, 0, 1]
    assert query.label_names == gallery.label_names == ["id_00000009", "id_00000011", "id_00000080"]
    assert query.labels.tolist() == [2, 0]
    assert gallery.labels.tolist() == [2, 1, 0]
    assert gallery.paths is not None
    assert gallery.paths[0] == str(tmp_path / "Img/img/MEN/Denim/id_00000080/01_1_front.jpg")


def test_superclass_is_the_category_folder_of_men_and_women_alike(tmp_path: Path) -> None:
    write_in_shop(tmp_path)
    train, query = InShop(tmp_path, "train"), InShop(tmp_path, "query")
    assert train.superclass_names == query.superclass_names == ["Denim", "Dresses", "Skirts"]
    assert train.superclasses is not None
    assert train.superclasses.tolist() == [1, 0]
    assert query.superclasses is not None
    assert query.superclasses.tolist() == [1, 2, 0]


@settings(max_examples=40)
@given(table=st.lists(rows, min_size=1, max_size=30))
def test_any_table_comes_back_row_by_row(table: list[tuple[str, str, str]]) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        write_lines(root / LIST, in_shop_lines(table))
        for image, _, _ in table:
            (root / image).parent.mkdir(parents=True, exist_ok=True)
            (root / image).touch()
        for split in {status for _, _, status in table}:
            dataset = InShop(root, split)
            listed = [(image, item) for image, item, status in table if status == split]
            assert dataset.paths == [str(root / image) for image, _ in listed]
            assert [dataset.label_names[label] for label in dataset.labels] == [item for _, item in listed]
            group = {item for _, item, status in table if (status == "train") == (split == "train")}
            assert dataset.label_names == sorted(group)
            for item, number in zip(dataset.label_names, dataset.superclasses, strict=True):
                first = next(image for image, other, _ in table if other == item)
                assert dataset.superclass_names[number] == first.split("/")[2]


def test_list_and_images_may_lie_in_root(tmp_path: Path) -> None:
    write_in_shop(tmp_path)
    (tmp_path / LIST).rename(tmp_path / "list_eval_partition.txt")
    (tmp_path / "Img" / "img").rename(tmp_path / "img")
    dataset = InShop(tmp_path, "query")
    assert dataset.paths is not None
    assert dataset.paths[0] == str(tmp_path / "img/MEN/Denim/id_00000080/01_2_side.jpg")
    assert dataset[0][1] == 2


@pytest.mark.parametrize("parent", ["Img", ""])
def test_large_images_are_read_where_there_are_no_small_ones(tmp_path: Path, parent: str) -> None:
    write_in_shop(tmp_path)
    small, large = tmp_path / "Img" / "img", tmp_path / parent / "img_highres"
    shutil.copytree(small, large)
    image = "MEN/Denim/id_00000080/01_2_side.jpg"
    assert InShop(tmp_path, "query").paths == [
        str(small / image),
        str(small / "WOMEN/Dresses/id_00000009/01_1_front.jpg"),
    ]
    shutil.rmtree(small)
    dataset = InShop(tmp_path, "query")
    assert dataset.paths is not None
    assert dataset.paths[0] == str(large / image)
    assert dataset[0][1] == 2


def test_images_that_are_not_unpacked_are_missed(tmp_path: Path) -> None:
    write_lines(tmp_path / LIST, in_shop_lines(IN_SHOP))
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/Img/img is missing"):
        InShop(tmp_path)


@pytest.mark.parametrize("count", ["52712", "7", "many"])
def test_wrong_count_is_told(tmp_path: Path, count: str) -> None:
    write_in_shop(tmp_path)
    write_lines(tmp_path / LIST, [count, *in_shop_lines(IN_SHOP)[1:]])
    with pytest.raises(ValueError, match=rf"{LIST}, line 1: it says '{count}', but 8 images follow"):
        InShop(tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg id_00000002", "2 columns"),
        ("img/WOMEN/Dresses/id_00000002/02 1 front.jpg id_00000002 train", "5 columns"),
        ("", "0 columns"),
        ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg id_00000002 test", "'test' is not one of 'train', "),
        ("img/02_1_front.jpg id_00000002 train", "an image is img/<gender>/"),
        ("/mg/WOMEN/Dresses/id_00000002/02_1_front.jpg id_00000002 train", "an image is img/<gender>/"),
    ],
)
def test_broken_line_is_told_with_its_number(tmp_path: Path, line: str, reason: str) -> None:
    write_in_shop(tmp_path)
    lines = in_shop_lines(IN_SHOP)
    lines[4] = line
    write_lines(tmp_path / LIST, lines)
    with pytest.raises(ValueError, match=rf"{LIST}, line 5: expected '<image_name> .*{reason}"):
        InShop(tmp_path, "query")


def test_another_header_is_told(tmp_path: Path) -> None:
    write_in_shop(tmp_path)
    write_lines(tmp_path / LIST, ["1", "image_name landmarks", "a b c"])
    with pytest.raises(ValueError, match="line 2: expected 'image_name item_id evaluation_status'"):
        InShop(tmp_path)


@pytest.mark.parametrize("lines", [[], ["0"], ["0", "image_name item_id evaluation_status"]])
def test_list_without_images_is_told(tmp_path: Path, lines: list[str]) -> None:
    write_lines(tmp_path / LIST, lines)
    with pytest.raises(ValueError, match=f"{LIST} lists nothing"):
        InShop(tmp_path)


def test_split_without_images_is_told(tmp_path: Path) -> None:
    write_in_shop(tmp_path, IN_SHOP[:2])
    with pytest.raises(ValueError, match="list no image of split 'gallery' of In-shop"):
        InShop(tmp_path, "gallery")


def test_list_that_is_an_archive_is_told(tmp_path: Path) -> None:
    (tmp_path / "Eval").mkdir()
    (tmp_path / LIST).write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(ValueError, match=f"{LIST} is no text file"):
        InShop(tmp_path)
