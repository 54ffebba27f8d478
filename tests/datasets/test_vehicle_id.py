from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_datasets import VEHICLES, write_lines, write_vehicle_id, write_vehicle_list

from pml_xbn.datasets import VehicleID

SIZES = {"small": "test_list_800.txt", "medium": "test_list_1600.txt", "large": "test_list_2400.txt"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_vehicle_id(tmp_path)
    return tmp_path


def test_vehicles_get_labels_in_order_of_their_ids(root: Path) -> None:
    train = VehicleID(root)
    assert train.labels.tolist() == [1, 0, 1]
    assert train.label_names == ["3", "21"]
    assert train.paths == [str(root / "image" / f"{name}.jpg") for name in ("0008241", "0000005", "0007020")]
    assert train.superclasses is None


@pytest.mark.parametrize("size", SIZES)
def test_a_test_list_as_a_whole(root: Path, size: str) -> None:
    dataset = VehicleID(root, size)
    listed = VEHICLES[SIZES[size]]
    assert [int(dataset.label_names[label]) for label in dataset.labels] == [v for _, v in listed]
    assert dataset.label_names == [str(v) for v in sorted({v for _, v in listed})]


@settings(max_examples=40)
@given(vehicles=st.lists(st.integers(1, 6), min_size=2, max_size=30), seed=st.integers(0, 2**32))
def test_gallery_has_one_image_of_every_vehicle_and_queries_are_the_rest(
    vehicles: list[int], seed: int
) -> None:
    vehicles = [7, 7, *vehicles]  # so that there is a query
    with TemporaryDirectory() as folder:
        root = Path(folder)
        lines = [f"{number:07} {vehicle}" for number, vehicle in enumerate(vehicles)]
        write_lines(root / "train_test_split" / "test_list_800.txt", lines)
        (root / "image").mkdir()
        for number in range(len(vehicles)):
            (root / "image" / f"{number:07}.jpg").touch()
        whole = VehicleID(root, "small")
        query, gallery, again = (
            VehicleID(root, split, gallery_seed=seed)
            for split in ("small-query", "small-gallery", "small-gallery")
        )
    assert query.label_names == gallery.label_names == whole.label_names
    assert sorted(gallery.labels.tolist()) == list(range(len(whole.label_names)))
    rows = [list(zip(d.paths or [], d.labels.tolist(), strict=True)) for d in (whole, query, gallery, again)]
    assert sorted(rows[1] + rows[2]) == sorted(rows[0])
    assert rows[2] == rows[3]


def test_the_default_gallery_never_changes(root: Path) -> None:
    write_vehicle_list(root, "test_list_800.txt", [(f"{i:07}", i % 5) for i in range(40)])
    gallery = VehicleID(root, "small-gallery")
    # The numbers of Python's Mersenne Twister for seed 0: 0.84, 0.76, 0.42, 0.26, 0.51 of 8 images each.
    expected = [f"{5 * position + vehicle:07}.jpg" for vehicle, position in enumerate([6, 6, 3, 2, 4])]
    assert sorted(Path(path).name for path in gallery.paths or []) == sorted(expected)


def test_other_seeds_draw_other_galleries_evenly(root: Path) -> None:
    write_vehicle_list(root, "test_list_800.txt", [(f"{i:07}", 5) for i in range(4)])
    drawn: Counter[str] = Counter()
    for seed in range(200):
        drawn.update(VehicleID(root, "small-gallery", gallery_seed=seed).paths or [])
    assert len(drawn) == 4
    assert min(drawn.values()) > 25  # 50 expected, standard deviation 6


@pytest.mark.parametrize(
    ("line", "reason"),
    [("0000005", "1 columns"), ("0000005 3 1", "3 columns"), ("0000005 car", "invalid literal for int")],
)
def test_broken_line_is_told_with_its_number(root: Path, line: str, reason: str) -> None:
    write_lines(root / "train_test_split" / "test_list_1600.txt", ["0002000 50", line])
    for split in ("medium", "medium-query", "medium-gallery"):
        with pytest.raises(ValueError, match=f"test_list_1600.txt, line 2: .*{reason}"):
            VehicleID(root, split)


@pytest.mark.parametrize("size", SIZES)
def test_missing_list_is_named(root: Path, size: str) -> None:
    (root / "train_test_split" / SIZES[size]).unlink()
    with pytest.raises(FileNotFoundError, match=f"{SIZES[size]} is missing"):
        VehicleID(root, f"{size}-query")


def test_list_without_a_second_image_of_any_vehicle_has_no_queries(root: Path) -> None:
    write_vehicle_list(root, "test_list_800.txt", [("0000001", 1), ("0000002", 2)])
    assert len(VehicleID(root, "small-gallery")) == 2
    with pytest.raises(ValueError, match="list no image of split 'small-query'"):
        VehicleID(root, "small-query")


@pytest.mark.parametrize("size", SIZES)
def test_a_gallery_drawn_from_the_whole_list_is_that_of_the_splits(root: Path, size: str) -> None:
    whole = VehicleID(root, size)
    for seed in range(5):
        drawn = whole.draw_gallery(seed)
        for part, chosen in (("gallery", drawn), ("query", ~drawn)):
            dataset = VehicleID(root, f"{size}-{part}", gallery_seed=seed)
            assert dataset.labels.tolist() == whole.labels[chosen].tolist()
            positions = chosen.nonzero().squeeze(1).tolist()
            assert dataset.paths == [(whole.paths or [])[position] for position in positions]


@pytest.mark.parametrize("split", ["train", "small-query", "large-gallery"])
def test_a_gallery_is_drawn_from_a_test_list_alone(root: Path, split: str) -> None:
    with pytest.raises(ValueError, match=f"not from '{split}'; load 'small', 'medium', 'large'"):
        VehicleID(root, split).draw_gallery(0)


def test_official_counts_are_those_of_the_released_lists() -> None:
    counts = dict(zip(VehicleID.splits, VehicleID.official_counts, strict=True))
    assert [counts[size] for size in SIZES] == [6_493, 13_377, 19_777]
    assert [counts[f"{size}-gallery"] for size in SIZES] == [800, 1_600, 2_400]
    assert [counts[f"{size}-query"] for size in SIZES] == [5_693, 11_777, 17_377]
