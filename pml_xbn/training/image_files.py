"""Folders of images as people have them: with hidden files, other files, and broken images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from .._pillow import import_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

# Some that Pillow reads with a plugin alone are among them: people are to hear of images that are left out.
_SUFFIXES = {
    *{".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pgm", ".png"},
    *{".ppm", ".tif", ".tiff", ".webp"},
}


def find_images(folder: str | Path) -> list[Path]:
    """Returns the image files in a folder and all folders below and linked to, sorted, without hidden ones.

    A file is taken for an image by the end of its name; :func:`unreadable_images` opens them, and names
    photographs in HEIC, which are read if pillow-heif is installed.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is no folder: pass one with images")
    found = []
    above = {str(root): {_number_of(root)}}  # of every folder, those on the way to it, and itself
    for parent, folders, files in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders.copy():
            path = os.path.join(parent, name)
            if (number := _number_of(path)) in above[parent]:  # a link to where it came from
                folders.remove(name)
            above[path] = {*above[parent], number}
        paths = (Path(parent, name) for name in files if not name.startswith("."))
        found += [path for path in paths if path.suffix.lower() in _SUFFIXES]
    return sorted(found)


def _number_of(folder: str | Path) -> tuple[int, int]:
    """Returns what a folder has alone, by whichever links one comes to it."""
    found = os.stat(folder)
    return found.st_dev, found.st_ino


def open_image(path: str | Path) -> Image:
    """Returns the image of a file in RGB, on white if it is transparent, turned as its camera was held.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: the file system's own, such as a lack of permission.
        ValueError: the file is no image, not a whole one, or one of more than 8 bits a number, which would
            become white or black.
        ImportError: Pillow is not installed.
    """
    pillow = import_pillow()
    from PIL import ImageOps

    try:
        with pillow.open(path) as image:
            image.load()
            mode = image.mode
            try:
                turned = ImageOps.exif_transpose(image)
            except Exception:  # of whichever parser of EXIF: the picture itself is whole
                turned = image.copy()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no image {path}") from None
    except Exception as error:  # of whichever decoder; that of AVIF raises RuntimeError
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path} is no whole image ({error})") from error
    check_bits(mode, f"{path} is in ")
    return in_rgb(turned)


def in_rgb(image: Image) -> Image:
    """Returns an image in RGB, on white where it is transparent, not in a colour that nobody has seen."""
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    pillow = import_pillow()
    white = pillow.new("RGBA", image.size, "white")
    return pillow.alpha_composite(white, image.convert("RGBA")).convert("RGB")  # type: ignore[no-any-return]


def check_bits(mode: str, where: str = "") -> None:
    """Refuses a mode (ValueError) whose numbers Pillow would cut at 255 as it makes RGB of them."""
    if mode == "F" or mode.startswith("I"):
        raise ValueError(
            f"{where}Pillow's mode {mode}, with more than 8 bits a number: scale it to 8 bits, from 0 to 255"
        )


def unreadable_images(paths: Sequence[str | Path], workers: int = 4) -> dict[Path, str]:
    """Returns the files that :func:`open_image` cannot open, each with the reason. It reads every file once.

    A file whose name is not in UTF-8 is among them, as no list of files could hold it.

    Args:
        paths: image files.
        workers: threads that open them.
    """
    with ThreadPoolExecutor(max(1, workers)) as threads:
        reasons = threads.map(_reason, paths)
        return {Path(path): reason for path, reason in zip(paths, reasons, strict=True) if reason}


def _reason(path: str | Path) -> str:
    """Returns why the file cannot be opened, or nothing."""
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        return f"{os.fsencode(path)!r} is no name in UTF-8: rename it"
    try:
        open_image(path)
    except (OSError, ValueError) as error:
        return str(error)
    return ""
