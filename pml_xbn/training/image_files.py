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

_SUFFIXES = {".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}


def find_images(folder: str | Path) -> list[Path]:
    """Returns the image files in a folder and all folders below and linked to, sorted, without hidden ones.

    A file is taken for an image by the end of its name; :func:`unreadable_images` opens them.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is no folder: pass one with images")
    found = []
    for parent, folders, files in os.walk(root, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(parent, name) for name in files if not name.startswith("."))
        found += [path for path in paths if path.suffix.lower() in _SUFFIXES]
    return sorted(found)


def open_image(path: str | Path) -> Image:
    """Returns the image of a file in RGB, turned as its camera was held.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no image, or not a whole one.
        ImportError: Pillow is not installed.
    """
    pillow = import_pillow()
    from PIL import ImageOps

    try:
        with pillow.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no image {path}") from None
    except Exception as error:  # of whichever decoder; that of AVIF raises RuntimeError
        raise ValueError(f"{path} is no whole image ({error})") from error


def unreadable_images(paths: Sequence[str | Path], workers: int = 4) -> dict[Path, str]:
    """Returns the files that :func:`open_image` cannot open, each with the reason. It reads every file once.

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
        open_image(path)
    except (OSError, ValueError) as error:
        return str(error)
    return ""
