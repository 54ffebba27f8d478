"""Whatever a field of an annotation holds, it is read or refused by name, and no path leads out of `root`."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tiny_datasets
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_xbn import datasets


class Table(NamedTuple):
    """A list of a data set, and the number of the line that is changed."""

    dataset: str
    file: str
    line: int
    separator: str | None = None
    path_column: int | None = None


TABLES = {
    "CUB images": Table("CUB", "CUB_200_2011/images.txt", 2, path_column=1),
    "CUB classes": Table("CUB", "CUB_200_2011/image_class_labels.txt", 2),
    "Cars196 names": Table("Cars196", "names.csv", 14, separator="\n", path_column=0),
    "Cars196 training": Table("Cars196", "anno_train.csv", 1, separator=",", path_column=0),
    "Cars196 test": Table("Cars196", "anno_test.csv", 2, separator=",", path_column=0),
    "In-shop": Table("InShop", "Eval/list_eval_partition.txt", 4, path_column=0),
    "In-shop count": Table("InShop", "Eval/list_eval_partition.txt", 1),
    "SOP training": Table(
        "StanfordOnlineProducts", "Stanford_Online_Products/Ebay_train.txt", 3, path_column=3
    ),
    "SOP test": Table("StanfordOnlineProducts", "Stanford_Online_Products/Ebay_test.txt", 2, path_column=3),
    "VehicleID training": Table("VehicleID", "train_test_split/train_list.txt", 1, path_column=0),
    "VehicleID test": Table("VehicleID", "train_test_split/test_list_800.txt", 2, path_column=0),
}
LONG = "9" * 5000
NUMBERS = ["-1", "0", "197", "1e3", "nan", "inf", "1_000", "٣", "9" * 30, LONG, "0x10", "2.5"]
# All of them have five parts where the rest of the line allows for it, as those of In-shop have.
OUTSIDE = [
    "/etc/hosts",
    "//etc/hosts",
    "..",
    "../../../../../../etc/hosts",
    "img/../../../hosts",
    "img/../../../../../../etc/hosts",
    "sofa_final/../../../hosts",
]
STRANGE_PATHS = [".", "./", "/", "~", "~/a.jpg", "a\0b", "img/a/b/c/\0", "a" * 300, "a/" * 2000 + "b", "\x0c"]
texts = st.one_of(
    st.sampled_from([*NUMBERS, *OUTSIDE, *STRANGE_PATHS, ""]),
    st.integers().map(str),
    st.text(max_size=8),
    st.lists(st.sampled_from(["..", ".", "img", "a", "", "b.jpg"]), max_size=7).map("/".join),
)


def write(folder: Path, dataset: str, writer: Callable[[Path], None]) -> Path:
    if dataset in ("CUB", "Cars196"):
        pytest.importorskip("pytorch_metric_learning.datasets")
    writer(folder)
    return folder


# Of data sets with a line for each image.
NAMES = ("CUB", "Cars196", "InShop", "StanfordOnlineProducts", "VehicleID")
WRITERS = {name: tiny_datasets.WRITERS[name] for name in NAMES}


def errors_of(dataset: str, root: Path) -> list[str]:
    """What the splits raise; of those that are read, no path leads out of the folder."""
    errors = []
    cls = getattr(datasets, dataset)
    for split in cls.splits:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of counts
                paths = cls(root, split).paths
        except (ValueError, FileNotFoundError) as error:
            errors.append(str(error))
        else:
            for path in paths:
                assert os.path.normpath(path).startswith(f"{root}{os.sep}")
    return errors


def changed(line: str, table: Table, column: int, text: str) -> str:
    fields = line.split(table.separator)
    fields[column] = text
    return (table.separator or " ").join(fields)


@pytest.mark.parametrize("name", TABLES)
def test_any_text_in_a_list_is_read_or_the_file_is_named(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    table = TABLES[name]
    root = write(tmp_path_factory.mktemp("any"), table.dataset, WRITERS[table.dataset])
    file = root / table.file
    lines = file.read_text().splitlines()
    num_columns = len(lines[table.line - 1].split(table.separator))

    @settings(max_examples=150, deadline=None)
    @given(column=st.integers(0, num_columns - 1), text=texts)
    def check(column: int, text: str) -> None:
        line = changed(lines[table.line - 1], table, column, text)
        new_lines = [*lines[: table.line - 1], line, *lines[table.line :]]
        file.write_text("\n".join(new_lines) + "\n", encoding="utf-8")
        for error in errors_of(table.dataset, root):
            assert str(root) in error

    check()


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.path_column is not None])
def test_a_path_that_leads_out_of_the_dataset_is_refused_with_its_line(
    tmp_path: Path, name: str, path: str
) -> None:
    table = TABLES[name]
    if name == "Cars196 names" and path != "..":
        pytest.skip("a slash in the name of a model is a hyphen in that of its folder")
    root = write(tmp_path, table.dataset, WRITERS[table.dataset])
    lines = (root / table.file).read_text().splitlines()
    assert table.path_column is not None
    lines[table.line - 1] = changed(lines[table.line - 1], table, table.path_column, path)
    tiny_datasets.write_lines(root / table.file, lines)
    errors = errors_of(table.dataset, root)
    assert any(f"{root / table.file}, line {table.line}: " in error for error in errors)


@pytest.mark.parametrize("name", WRITERS)
def test_root_and_images_may_be_links_to_elsewhere(tmp_path: Path, name: str) -> None:
    written = write(tmp_path / "here", name, WRITERS[name])
    (tmp_path / "link").symlink_to(written)
    cls = getattr(datasets, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = Path(cls(written).paths[0])
        first.rename(tmp_path / "elsewhere.jpg")
        first.symlink_to(tmp_path / "elsewhere.jpg")
        dataset = cls(tmp_path / "link")
    image, _ = dataset[0]
    assert image.size == (tiny_datasets.WIDTH, tiny_datasets.HEIGHT)


DEEP = "[" * 900 + "]" * 900
JSON = {
    "a number beyond int64": str(10**30),
    "a negative one": str(-(10**30)),
    "a number beyond float64": str(10**400),
    "a number of 5,000 digits": LONG,
    "inf": "1e400",
    "NaN": "NaN",
    "lists in lists": DEEP,
    "deeper ones": "[" * 100_000 + "]" * 100_000,
    "text": '"x"',
    "null": "null",
    "true": "true",
    "a list": "[1, 2, 3, 4]",
    "an object": "{}",
}


@pytest.mark.parametrize("value", JSON)
@pytest.mark.parametrize(
    "field", ["source", "pair_id", "item1", "category_id", "style", "bounding_box", "edge"]
)
def test_any_value_in_deep_fashion_2_is_read_or_the_file_is_named(
    tmp_path: Path, field: str, value: str
) -> None:
    tiny_datasets.write_deep_fashion_2(tmp_path)
    annotation: dict[str, Any] = {"source": "user", "pair_id": 3, "item1": tiny_datasets.clothing(9, 1)}
    if field == "edge":
        annotation["item1"]["bounding_box"][2] = "HERE"
    else:
        (annotation if field in annotation else annotation["item1"])[field] = "HERE"
    text = json.dumps(annotation).replace('"HERE"', JSON[value])
    file = tmp_path / "train/annos/000001.json"
    file.write_text(text)
    errors = errors_of("DeepFashion2", tmp_path)
    assert all(str(file) in error for error in errors)
    can_be_any_integer = field in ("pair_id", "style") and value == "a number beyond int64"
    can_be = can_be_any_integer or (field, value) in [
        ("pair_id", "a number beyond float64"),
        ("style", "a number beyond float64"),
        ("bounding_box", "a list"),
    ]
    assert len(errors) == (0 if can_be else 1)


@pytest.mark.parametrize(
    "name", ["/etc/hosts", "../../hosts", "..", "", 7, np.zeros(3), np.array(["a", "b"], dtype=object)]
)
def test_any_file_name_in_the_devkit_of_cars_is_refused_with_its_place(tmp_path: Path, name: Any) -> None:
    assert_devkit_refuses(tmp_path, (name, 14))


@pytest.mark.parametrize(
    "number",
    [0, 197, -1, 14.5, np.nan, np.inf, 1e300, 1j, "14x", np.zeros(0), np.array([3, 4]), np.uint64(2**63)],
)
def test_any_model_in_the_devkit_of_cars_is_refused_with_its_place(tmp_path: Path, number: Any) -> None:
    assert_devkit_refuses(tmp_path, ("00004.jpg", number))


def assert_devkit_refuses(root: Path, row: tuple[Any, Any]) -> None:
    pytest.importorskip("scipy")
    tiny_datasets.write_cars196_devkit(root)
    file = root / "devkit/cars_train_annos.mat"
    tiny_datasets.write_car_annotations(file, [*tiny_datasets.CARS["train"], row])
    errors = errors_of("Cars196", root)
    assert len(errors) == 2
    assert all(error.startswith(f"{file}, annotation 4: ") for error in errors)


@pytest.mark.parametrize("content", [np.array([[3.0]]), np.array([["text"]]), np.eye(3)])
@pytest.mark.parametrize("key", ["class_names", "annotations"])
def test_a_variable_of_another_kind_in_the_devkit_of_cars_is_named(
    tmp_path: Path, key: str, content: np.ndarray
) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    tiny_datasets.write_cars196_devkit(tmp_path)
    name = "cars_meta.mat" if key == "class_names" else "cars_train_annos.mat"
    scipy_io.savemat(tmp_path / "devkit" / name, {key: content})
    errors = errors_of("Cars196", tmp_path)
    assert len(errors) == 2
    assert all(str(tmp_path) in error for error in errors)
