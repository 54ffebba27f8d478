"""Pillow, which opens images and is not in the core install."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any


def import_pillow() -> Any:
    """Returns the module `PIL.Image`, which reads HEIC too where pillow-heif is installed.

    Raises:
        ImportError: Pillow is not installed; the message names the extra.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            f'images are opened with Pillow ({error}); install it with: pip install "pml_xbn[examples]"'
        ) from error
    _register_heic()
    return Image


@cache  # a search for a package that is not there would be made for every image
def _register_heic() -> None:
    with suppress(ImportError):
        import_module("pillow_heif").register_heif_opener()
