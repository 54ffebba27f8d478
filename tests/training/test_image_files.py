from __future__ import annotations

import os
from pathlib import Path

import pytest

from pml_xbn.training import find_images, open_image, unreadable_images

image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b/2.PNG", "b/deep/1.jpg", "a/1.png", ".hidden/1.png", "a/.thumbnail.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        image.effect_noise((40, 30), 90).convert("RGB").save(tmp_path / name)
    (tmp_path / "a" / "readme.txt").write_text("text")
    return tmp_path


def test_images_are_found_in_all_folders_but_hidden_ones(folder: Path) -> None:
    assert find_images(folder) == [folder / name for name in ("a/1.png", "b/2.PNG", "b/deep/1.jpg")]


def test_linked_folders_are_searched_too(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "c").symlink_to(folder / "a")
    assert find_images(tmp_path / "linked") == [tmp_path / "linked" / "c" / "1.png"]


def test_links_that_lead_back_are_not_followed(folder: Path) -> None:
    for name in ("a/all", "a/here", "b/deep/up"):
        (folder / name).symlink_to(folder / ("a" if name == "a/here" else ""))
    found = find_images(folder)
    assert {path.relative_to(folder).as_posix() for path in found} == {"a/1.png", "b/2.PNG", "b/deep/1.jpg"}
    assert len(found) == 3


def test_images_of_sixteen_bits_and_names_that_are_not_in_utf_8_are_unreadable(folder: Path) -> None:
    image.new("I;16", (8, 8), 40_000).save(folder / "a" / "deep.png")
    latin = Path(os.fsdecode(os.fsencode(folder / "a") + b"/caf\xe9.png"))
    (folder / "a" / "1.png").rename(latin)
    reasons = unreadable_images(find_images(folder))
    assert set(reasons) == {latin, folder / "a" / "deep.png"}
    assert "is no name in UTF-8: rename it" in reasons[latin]
    assert "deep.png is in Pillow's mode I;16, with more than 8 bits" in reasons[folder / "a" / "deep.png"]


def test_a_folder_with_the_name_of_an_image_is_told_by_the_file_system(tmp_path: Path) -> None:
    (tmp_path / "1.png").mkdir()
    with pytest.raises(IsADirectoryError):
        open_image(tmp_path / "1.png")


def test_images_of_rarer_kinds_are_found_and_those_that_pillow_cannot_read_named(folder: Path) -> None:
    image.new("RGB", (8, 8)).save(folder / "a" / "2.jfif")
    photograph = folder / "a" / "3.HEIC"
    photograph.write_bytes(b"\0\0\0\x18ftypheic" + bytes(12))
    found = find_images(folder)
    assert {folder / "a" / "2.jfif", photograph} <= set(found)
    assert set(unreadable_images(found)) == {photograph}


def test_a_hidden_folder_above_hides_nothing(folder: Path) -> None:
    assert find_images(folder / ".hidden") == [folder / ".hidden" / "1.png"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is no folder"):
        find_images(tmp_path / "nowhere")


def test_truncated_and_empty_files_are_unreadable(folder: Path) -> None:
    whole = (folder / "b/deep/1.jpg").read_bytes()
    (folder / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("no image")
    broken = unreadable_images(find_images(folder))
    assert [path.name for path in broken] == ["empty.png", "text.png", "truncated.jpg"]
    assert all(str(path) in reason for path, reason in broken.items())
    assert "truncated" in broken[folder / "truncated.jpg"]


def test_a_broken_avif_is_unreadable_although_its_decoder_raises_errors_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("PIL.features").check("avif") or pytest.skip("Pillow without AVIF")
    path = tmp_path / "broken.avif"
    image.effect_noise((40, 30), 90).convert("RGB").save(path)
    whole = path.read_bytes()
    assert unreadable_images([path]) == {}
    path.write_bytes(whole.replace(b"av01", b"av02"))  # no item of a kind that is known
    assert "broken.avif is no whole image" in unreadable_images([path])[path]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(tmp_path: Path, mode: str) -> None:
    hidden = image.new("RGBA", (8, 8), (255, 0, 0, 0))
    hidden.paste((0, 0, 255, 255), (0, 0, 4, 8))
    if mode == "P":
        hidden = hidden.convert("RGB").quantize(4)
        hidden.info["transparency"] = hidden.getpixel((7, 0))
        hidden.save(tmp_path / "1.png", transparency=hidden.info["transparency"])
    else:
        hidden.convert(mode).save(tmp_path / "1.png")
    found = open_image(tmp_path / "1.png")
    assert found.mode == "RGB"
    assert found.getpixel((7, 0)) == (255, 255, 255)
    assert found.getpixel((0, 0)) != (255, 255, 255)
    half = image.new("RGBA", (8, 8), (0, 0, 0, 128))
    half.save(tmp_path / "half.png")
    assert open_image(tmp_path / "half.png").getpixel((0, 0)) == (127, 127, 127)


def test_an_image_with_broken_exif_is_read(tmp_path: Path) -> None:
    path = tmp_path / "1.jpg"
    image.new("RGB", (8, 4), "red").save(path, dpi=(72, 72), exif=b"Exif\0\0broken!!")
    assert open_image(path).size == (8, 4)
    assert unreadable_images([path]) == {}


def test_an_image_is_turned_as_its_camera_was_held(tmp_path: Path) -> None:
    exif = image.Exif()
    exif[0x0112] = 6  # orientation: a quarter turn
    image.new("RGB", (40, 30)).save(tmp_path / "turned.jpg", exif=exif)
    assert open_image(tmp_path / "turned.jpg").size == (30, 40)


def test_an_image_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no image .*nowhere\.png"):
        open_image(tmp_path / "nowhere.png")
