"""Draws the characters of matplotlib's own fonts: the raw material of `Glyphs`."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.ft2font import FT2Font, LoadFlags

IMAGE_SIZE = 32
MIN_FONTS = 4
MIN_IMAGES = 3

_EM_PIXELS = 24
_LARGEST_SIDE = 28
_FONT_PREFIXES = ("DejaVuSans", "DejaVuSerif", "STIXGeneral")
# Other (controls, private use), separators, and marks that only have a shape upon a base letter.
_SKIPPED_CATEGORIES = frozenset("CZM")


class Rendering(NamedTuple):
    """All characters that became classes, in order of code point, and their images.

    Attributes:
        images: (N, 32, 32) uint8, ink is 255 and paper is 0; the images of a class are neighbours.
        counts: images per character.
        code_points: the characters.
        checksum: first 16 hexadecimal digits of the SHA-256 of ``images``.
        matplotlib_version: the version whose fonts and FreeType drew the images.
    """

    images: Tensor
    counts: list[int]
    code_points: list[int]
    checksum: str
    matplotlib_version: str


@lru_cache(maxsize=1)
def render_glyphs() -> Rendering:
    """Draws every character once per text font; later calls return the first call's result.

    Raises:
        ImportError: matplotlib 3.10 or newer is not installed.
    """
    try:
        import matplotlib
        import numpy as np
        from matplotlib.ft2font import LoadFlags
    except ImportError as error:
        raise ImportError(
            f"Glyphs needs matplotlib 3.10 or newer to draw its images ({error}); "
            'install it with: pip install "pml_xbn[examples]"'
        ) from error

    fonts = _text_fonts(os.path.join(matplotlib.get_data_path(), "fonts", "ttf"))
    classes = _keep_distinct(_draw_characters(fonts, LoadFlags.NO_HINTING))
    ink = b"".join(image for images in classes.values() for image in images)
    pixels = np.frombuffer(ink, dtype=np.uint8).reshape(-1, IMAGE_SIZE, IMAGE_SIZE)
    return Rendering(
        images=torch.from_numpy(pixels.copy()),
        counts=[len(images) for images in classes.values()],
        code_points=list(classes),
        checksum=hashlib.sha256(ink).hexdigest()[:16],
        matplotlib_version=matplotlib.__version__,
    )


def _text_fonts(folder: str) -> list[FT2Font]:
    from matplotlib.ft2font import FT2Font

    # Sorted, since the order of a directory listing differs between machines.
    return [
        FT2Font(os.path.join(folder, name))
        for name in sorted(os.listdir(folder))
        if name.startswith(_FONT_PREFIXES) and "Display" not in name
    ]


def _draw_characters(fonts: list[FT2Font], flags: LoadFlags) -> dict[int, list[bytes]]:
    """Returns by code point one 32x32 image per font that has the character, blank ones left out."""
    fonts_of: dict[int, list[FT2Font]] = {}
    for font in fonts:
        for code_point in font.get_charmap():
            fonts_of.setdefault(code_point, []).append(font)
    return {
        code_point: [image for font in able if (image := _draw(font, code_point, flags))]
        for code_point, able in sorted(fonts_of.items())
        if len(able) >= MIN_FONTS and _is_drawable(chr(code_point))
    }


def _is_drawable(character: str) -> bool:
    return unicodedata.category(character)[0] not in _SKIPPED_CATEGORIES


def _draw(font: FT2Font, code_point: int, flags: LoadFlags) -> bytes | None:
    """Returns the centred glyph, at the font's natural size where that fits; None for a blank one."""
    font.set_size(_EM_PIXELS, 72)
    glyph = font.load_char(code_point, flags)
    side = max(glyph.width, glyph.height) / 64  # FreeType counts in 64ths of a pixel
    if side > _LARGEST_SIDE:
        font.set_size(_EM_PIXELS * _LARGEST_SIDE / side, 72)
        glyph = font.load_char(code_point, flags)
    return _centred(_bitmap(font, glyph))


def _bitmap(font: FT2Font, glyph: Any) -> Any:
    """Draws the glyph on a canvas with room for bearings left and right of the origin."""
    import matplotlib
    import numpy as np

    height, width, left, top = 48, 160, 80, 4
    if matplotlib.__version_info__ >= (3, 11):
        canvas: Any = np.zeros((height, width), dtype=np.uint8)
    else:
        from matplotlib.ft2font import FT2Image

        canvas = FT2Image(width, height)
    font.draw_glyph_to_bitmap(canvas, left, top, glyph)
    return np.asarray(canvas)


def _centred(bitmap: Any) -> bytes | None:
    import numpy as np

    rows, columns = np.flatnonzero(bitmap.any(axis=1)), np.flatnonzero(bitmap.any(axis=0))
    if not len(rows):
        return None
    ink = bitmap[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = ink.shape
    top, left = (IMAGE_SIZE - height) // 2, (IMAGE_SIZE - width) // 2
    image = np.zeros((IMAGE_SIZE, IMAGE_SIZE), dtype=np.uint8)
    image[top : top + height, left : left + width] = ink
    return image.tobytes()


def _keep_distinct(drawn: dict[int, list[bytes]]) -> dict[int, list[bytes]]:
    """Drops repeated images, characters with too few left, and later homoglyphs."""
    kept: dict[int, list[bytes]] = {}
    taken: set[bytes] = set()
    for code_point, images in drawn.items():
        distinct = list(dict.fromkeys(images))
        if len(distinct) >= MIN_IMAGES and taken.isdisjoint(distinct):
            kept[code_point] = distinct
            taken.update(distinct)
    return kept
