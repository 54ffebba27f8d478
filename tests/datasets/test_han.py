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
from tiny_han_fonts import CHARACTERS, draw_tiny_han, write_fonts
from torch.utils.data import DataLoader

from pml_xbn.datasets import Han, han_fonts, han_rendering
from pml_xbn.datasets.han_fonts import FONTS

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


@pytest.mark.parametrize("spoil", ["cut", "images", "code_points", "fonts"])
def test_damaged_images_are_drawn_again(load: Load, tmp_path: Path, spoil: str) -> None:
    first = load(distortion=0)
    (path,) = tmp_path.glob("images-*")
    if spoil == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        content = torch.load(path)
        content[spoil].flatten()[0] ^= 1
        torch.save(content, path)
    assert torch.equal(load(distortion=0).images, first.images)
    assert [other.name for other in tmp_path.iterdir()] == [path.name]


def test_another_font_by_the_same_name_and_size_is_another_data_set(load: Load, tmp_path: Path) -> None:
    folder = tmp_path / "fonts"
    fonts = write_fonts(folder, [CHARACTERS] * 5)
    first = load(fonts=folder)
    assert torch.equal(load(fonts=fonts).images, first.images)  # of the folder
    other = write_fonts(tmp_path / "other", [CHARACTERS] * 6)[5]
    content = other.read_bytes().ljust(fonts[4].stat().st_size, b"\0")
    fonts[4].write_bytes(content)
    assert load(fonts=folder).checksum != first.checksum


def test_images_that_are_drawn_need_no_font(tmp_path: Path) -> None:
    draw_tiny_han(tmp_path)
    han = Han("train", tmp_path)
    assert han.font_names == [font.file for font in FONTS]
    assert len(han) > 0


def test_two_processes_may_draw_at_once(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one draws the same while this one does."""
    draw = han_rendering.draw_characters

    def draw_twice(*arguments: Any) -> Any:
        monkeypatch.setattr(han_rendering, "draw_characters", draw)
        load()
        return draw(*arguments)

    monkeypatch.setattr(han_rendering, "draw_characters", draw_twice)
    assert len(load()) == len(load())
    assert len(list(tmp_path.iterdir())) == 1


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
        ({"split": ["train"]}, r"split is \['train'\]; choose one of"),
        ({"distortion": "1"}, "distortion is '1'; pass a finite number"),
        ({"side": 8}, "side=8"),
    ],
)
def test_a_bad_value_is_named(load: Load, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(**options)


def test_too_few_fonts_are_told(load: Load, fonts: list[Path]) -> None:
    with pytest.raises(ValueError, match="the 3 fonts draw no Han character 4 times: pass at least 4"):
        load(fonts=fonts[:3])


def test_what_is_no_font_is_named(load: Load, fonts: list[Path], tmp_path: Path) -> None:
    (folder := tmp_path / "none").mkdir()
    with pytest.raises(FileNotFoundError, match=f"fonts='{folder}' has no font: pass a folder"):
        load(fonts=str(folder))
    for content in (b"", b"no font", fonts[0].read_bytes()[:600]):
        (broken := folder / "broken.ttf").write_bytes(content)
        with pytest.raises(ValueError, match=f"{broken} cannot be read as a TrueType or OpenType font"):
            load(fonts=[*fonts, broken])
    assert not list(tmp_path.glob("images-*"))


def write_packages(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Writes files by the names of the packages' fonts, which are taken for those of the packages."""
    files = [root / str(number % 3) / font.file for number, font in enumerate(FONTS)]
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text(path.name)
    some = tuple(font._replace(digest=hashlib.sha256(font.file.encode()).hexdigest()[:16]) for font in FONTS)
    monkeypatch.setattr(han_fonts, "FONTS", some)
    return files


def test_fonts_are_found_wherever_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_packages(tmp_path, monkeypatch)
    assert han_fonts.find_fonts(tmp_path) == files
    files[5].unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"^1 of the 34 fonts of Han are missing in {tmp_path}: .*"
    ) as told:
        han_fonts.find_fonts(tmp_path)
    assert str(told.value).endswith(f": {FONTS[5].package}={FONTS[5].version}")


def test_a_damaged_font_is_named_and_another_copy_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_packages(tmp_path, monkeypatch)
    files[7].write_text(FONTS[7].file[:-1])
    with pytest.raises(ValueError, match=f"{files[7]} is not the file of {FONTS[7].package}=.*, or not all"):
        han_fonts.find_fonts(tmp_path)
    (whole := tmp_path / "again" / FONTS[7].file).parent.mkdir()
    whole.write_text(FONTS[7].file)
    assert han_fonts.find_fonts(tmp_path)[7] == whole
    whole.parent.rename(tmp_path / "unpacking-x")  # by another process, which is not done
    with pytest.raises(ValueError, match="or not all of it"):
        han_fonts.find_fonts(tmp_path)


def test_missing_fonts_name_their_packages(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="pass download=True on Debian 12") as told:
        Han("train", tmp_path)
    for font in FONTS:
        assert f"{font.package}={font.version}" in str(told.value)


def test_a_download_fetches_packages_of_missing_and_damaged_fonts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_packages(tmp_path, monkeypatch)
    files[3].unlink()
    files[9].write_text("half of")
    needed, calls = [FONTS[3], FONTS[9]], []

    def pretend(command: list[str], cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        if command[0] == "apt-get":
            for font in needed:
                (cwd / f"{font.package}_{font.version}_all.deb").touch()
        else:
            folder = Path(command[3]) / "usr"
            folder.mkdir(parents=True)
            for name in (*(font.file for font in needed if font.package in command[2]), "other.ttf"):
                (folder / name).write_text(name)
            (folder / "copyright").touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("shutil.which", lambda program: program)
    monkeypatch.setattr("subprocess.run", pretend)
    monkeypatch.setattr(han_rendering, "draw_characters", draw_nothing)
    with pytest.raises(NotImplementedError):
        Han("train", tmp_path, download=True)
    assert [command[:2] for command in calls] == [["apt-get", "download"], *[["dpkg-deb", "-x"]] * 2]
    assert calls[0][2:] == [f"{font.package}={font.version}" for font in needed]
    assert han_fonts.find_fonts(tmp_path)[3] == tmp_path / "fonts" / FONTS[3].package / FONTS[3].file
    assert {path.name for path in tmp_path.iterdir()} == {"fonts", "0", "1", "2"}
    assert {path.name for path in tmp_path.glob("fonts/*/*")} == {*(x.file for x in needed), "copyright"}


def test_a_failed_download_says_what_apt_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 100, "", "E: Version '1' for 'fonts' was not found\n")

    monkeypatch.setattr("shutil.which", lambda program: program)
    monkeypatch.setattr("subprocess.run", fail)
    with pytest.raises(
        ValueError,
        match=r"^apt-get download failed \(E: Version '1' for 'fonts' was .*\): run apt-get update",
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
