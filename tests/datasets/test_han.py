from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_han_fonts import CHARACTERS, write_fonts
from torch.utils.data import DataLoader

from pml_xbn.datasets import Han
from pml_xbn.datasets.han_fonts import FONTS, find_fonts

pytest.importorskip("fontTools")
pytest.importorskip("PIL")
SPLITS = ("train", "validation", "test")
Load = Callable[..., Han]


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Eight fonts: all have the first characters, three the second last, none but two the last."""
    folder = tmp_path_factory.mktemp("fonts")
    rare = set(CHARACTERS[-2:])
    common = [code for code in CHARACTERS if code not in rare]
    more = [[*CHARACTERS], [*CHARACTERS], [*common, CHARACTERS[-2]]]
    return write_fonts(folder, [*more, common, common, common, common, common])


@pytest.fixture
def load(fonts: list[Path], tmp_path: Path) -> Load:
    return lambda split="train", **options: Han(split, tmp_path, **{"fonts": fonts} | options)


def draw_nothing(*_: object) -> None:
    raise NotImplementedError


def hash_of(character: str) -> int:
    """Where the split of a character comes from, of 65,536."""
    return int(hashlib.md5(f"split {ord(character)}".encode()).hexdigest()[:4], 16)


def test_a_character_that_four_fonts_draw_is_a_class_of_at_most_six_images(load: Load) -> None:
    found = [name for split in SPLITS for name in load(split).label_names]
    assert sorted(found) == [chr(code) for code in CHARACTERS[:-2]]
    counts = torch.cat([load(split).labels.bincount() for split in SPLITS])
    assert counts.max() == 6  # of eight fonts
    assert counts.min() >= 4
    assert counts.sum() == sum(len(load(split)) for split in SPLITS)


def test_the_split_of_a_character_depends_on_nothing_else(load: Load, fonts: list[Path]) -> None:
    ends = {"train": (0, 32_768), "validation": (32_768, 35_904), "test": (35_904, 65_536)}
    for split, (first, end) in ends.items():
        for some in (fonts, fonts[:5]):
            assert all(first <= hash_of(name) < end for name in load(split, fonts=some).label_names)


def test_shapes_dtypes_and_labels(load: Load) -> None:
    for split in SPLITS:
        dataset = load(split)
        size, classes = len(dataset), len(dataset.label_names)
        assert (dataset.images.shape, dataset.images.dtype) == ((size, 32, 32), torch.uint8)
        assert (dataset.labels.shape, dataset.labels.dtype) == ((size,), torch.int64)
        assert dataset.labels.unique().tolist() == list(range(classes))
        assert (dataset.superclasses.shape, dataset.superclasses.dtype) == ((classes,), torch.int64)
        assert dataset.fonts.shape == (size,)
        assert dataset.font_names == [f"tiny{number}.ttf" for number in range(8)]
        assert (dataset.paths, dataset.evaluation) == (None, ("test",))
    assert Han.get_available_splits() == list(SPLITS)


def test_the_superclass_is_the_radical(load: Load) -> None:
    radicals = {"丁": "ONE", "丰": "LINE", "丸": "DOT", "乂": None, "丿": "SLASH"}
    for split in SPLITS:
        dataset = load(split)
        for name, superclass in zip(dataset.label_names, dataset.superclasses.tolist(), strict=True):
            if radicals.get(name):
                assert dataset.superclass_names[superclass] == f"KANGXI RADICAL {radicals[name]}"
    assert len(dataset.superclass_names) == 214


def test_clean_images_are_centred_and_distinct(load: Load) -> None:
    """Characters lie in the middle, leave a border, and differ within a class."""
    dataset = load(distortion=0)
    for image in dataset.images:
        rows, columns = (image.amax(dim=dim).nonzero().flatten() for dim in (1, 0))
        top, bottom, left, right = rows[0], rows[-1], columns[0], columns[-1]
        assert abs(int(top + bottom) - 31) <= 1  # centred
        assert abs(int(left + right) - 31) <= 1
        assert max(bottom - top, right - left) < 30
        assert image.max() > 200
    items = zip(dataset.labels.tolist(), dataset.images, strict=True)
    distinct = {(label, image.numpy().tobytes()) for label, image in items}
    assert len(distinct) == len(dataset)


def test_every_image_has_a_distortion_of_its_own_always_the_same(load: Load) -> None:
    clean, mild, full = (load(distortion=strength).images.double() for strength in (0, 0.25, 1))
    assert torch.equal(load(distortion=1).images.double(), full)
    assert torch.equal(load().images.double(), full)
    near, far = ((images - clean).square().mean(dim=(1, 2)) for images in (mild, full))
    assert (far > 0).all()
    assert near.mean() < far.mean() / 2
    assert load().checksum == load(distortion=0).checksum


def test_images_have_the_side_that_is_asked_for(load: Load) -> None:
    assert load(side=48).images.shape[1:] == (48, 48)
    means = [float(load(side=side, distortion=0).images.float().mean()) for side in (32, 48)]
    assert means[0] == pytest.approx(means[1], rel=0.1)


def test_a_second_time_nothing_is_drawn(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load()
    monkeypatch.setattr("pml_xbn.datasets.han_rendering.draw_characters", None)
    second = load()
    assert torch.equal(first.images, second.images)
    assert first.checksum == second.checksum


def test_changing_one_dataset_leaves_the_next_as_it_was(load: Load) -> None:
    first = load()
    expected = first.images.clone()
    first.images.zero_()
    assert torch.equal(load().images, expected)


def test_items_transforms_and_batches(load: Load) -> None:
    dataset = load()
    image, label = dataset[5]
    assert torch.equal(image, dataset.images[5, None])
    assert type(label) is int
    assert label == dataset.labels[5]
    changed = load(transform=lambda image: image.float() / 255, target_transform=str)
    assert torch.equal(changed[-1][0], dataset.images[-1, None] / 255)
    assert changed[-1][1] == str(int(dataset.labels[-1]))
    images, labels = next(iter(DataLoader(dataset, batch_size=8)))
    assert (images.shape, labels.shape) == ((8, 1, 32, 32), (8,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "val"}, "split is 'val'; choose one of 'train', 'validation', 'test'"),
        ({"distortion": -1.0}, "distortion is -1.0; pass a finite number from 0 up"),
        ({"distortion": math.nan}, "distortion is nan; pass a finite number"),
        ({"side": 8}, "side=8"),
    ],
)
def test_a_bad_value_is_named(load: Load, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(**options)


def test_too_few_fonts_are_told(load: Load, fonts: list[Path]) -> None:
    with pytest.raises(ValueError, match="the 3 fonts draw no Han character 4 times: pass at least 4"):
        load(fonts=fonts[:3])


def test_fonts_are_found_wherever_they_lie(tmp_path: Path) -> None:
    for number, font in enumerate(FONTS):
        path = tmp_path / str(number % 3) / font.file
        path.parent.mkdir(exist_ok=True)
        path.touch()
    found = find_fonts(tmp_path)
    assert [(path.name, index) for path, index in found] == [(font.file, font.number) for font in FONTS]
    found[5][0].unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"^1 of the 34 fonts of Han are missing in {tmp_path}: .*"
    ) as told:
        find_fonts(tmp_path)
    assert str(told.value).endswith(f": {FONTS[5].package}={FONTS[5].version}")


def test_missing_fonts_name_their_packages(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="pass download=True on Debian 12") as told:
        Han("train", tmp_path)
    for font in FONTS:
        assert f"{font.package}={font.version}" in str(told.value)


def test_a_download_fetches_each_package_once_and_unpacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def pretend(command: list[str], cwd: str, **options: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        if command[0] == "apt-get":
            (Path(cwd) / "fonts.deb").touch()
        else:
            for font in FONTS:
                (Path(command[3]) / font.file).touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("shutil.which", lambda program: program)
    monkeypatch.setattr("subprocess.run", pretend)
    monkeypatch.setattr("pml_xbn.datasets.han.load_or_draw", draw_nothing)
    with pytest.raises(NotImplementedError):
        Han("train", tmp_path, download=True)
    assert [command[:2] for command in calls] == [["apt-get", "download"], ["dpkg-deb", "-x"]]
    assert sorted(calls[0][2:]) == sorted({f"{font.package}={font.version}" for font in FONTS})
    assert calls[1][3] == str((tmp_path / "fonts").resolve())


def test_a_failed_download_says_what_apt_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 100, "", "E: Version '1' for 'fonts' was not found\n")

    monkeypatch.setattr("shutil.which", lambda program: program)
    monkeypatch.setattr("subprocess.run", fail)
    with pytest.raises(
        ValueError, match=r"(?s)^apt-get download failed; .*Debian 12.*E: Version '1' for 'fonts'"
    ):
        Han("train", tmp_path, download=True)


def test_without_apt_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: None)
    with pytest.raises(
        FileNotFoundError, match="apt-get is missing, with which the fonts of Han are fetched"
    ):
        Han("train", tmp_path, download=True)


@pytest.mark.parametrize("package", ["PIL", "fontTools"])
def test_without_a_library_the_error_names_the_extra(
    load: Load, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r'pip install "pml_xbn\[examples\]"'):
        load()
