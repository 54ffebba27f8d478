"""Pillow, which opens images and is not in the core install."""

from __future__ import annotations

from typing import Any


def import_pillow() -> Any:
    """Returns the module `PIL.Image`.

    Raises:
        ImportError: Pillow is not installed; the message names the extra.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            f'images are opened with Pillow ({error}); install it with: pip install "pml_xbn[examples]"'
        ) from error
    return Image
