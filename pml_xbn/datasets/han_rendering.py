"""Draws Han characters with fonts of one's choice: the raw material of `Han`."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

CODE_POINTS = range(0x4E00, 0x9FA6)  # CJK Unified Ideographs as Unicode 1.1 had them, in order of radicals
MIN_IMAGES = 4
MAX_IMAGES = 6


class Rendering(NamedTuple):
    """All characters that became classes, in order of code point, and their images.

    Attributes:
        images: (N, side, side) uint8, ink is 255 and paper is 0; the images of a class are neighbours.
        code_points: (N,) int64, the character of every image.
        fonts: (N,) int64, which of the fonts drew it.
        checksum: first 16 hexadecimal digits of the SHA-256 of ``images``.
    """

    images: Tensor
    code_points: Tensor
    fonts: Tensor
    checksum: str


def load_or_draw(
    digests: Sequence[tuple[str, int]], side: int, folder: Path, find: Callable[[], Sequence[Path]]
) -> Rendering:
    """Returns what fonts draw, from a file in the folder if it has been drawn before.

    Args:
        digests: of every font the digest of its file, and its number in that file.
        side: of the images, in pixels.
        folder: of the file.
        find: returns the files of the fonts, if they are to draw.

    Raises:
        ImportError: Pillow or fontTools is not installed.
        OSError: the folder cannot be written to.
        ValueError: no character has enough images, or a file is no font.
    """
    try:
        import fontTools  # noqa: F401
        from PIL import features
    except ImportError as error:
        raise ImportError(
            f"Han needs Pillow and fontTools to draw its images ({error}); "
            'install them with: pip install "pml_xbn[examples]"'
        ) from error
    drawn_by = [features.version("freetype2"), side, *digests]
    key = hashlib.sha256(repr(drawn_by).encode()).hexdigest()[:16]
    path = folder / f"images-{key}.pt"
    if path.exists():
        found = _load(path)
        if found is not None:
            return found
    files = find()
    folder.mkdir(parents=True, exist_ok=True)
    # A name that no other process has: at all times there is a whole file or none.
    part = path.with_suffix(f".{uuid.uuid4().hex[:8]}.part")
    try:
        with part.open("wb") as file:  # before minutes of drawing
            fonts = [(path, number) for path, (_, number) in zip(files, digests, strict=True)]
            rendering = draw_characters(fonts, side)
            torch.save({**rendering._asdict(), "digest": _digest(rendering)}, file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return rendering


def _load(path: Path) -> Rendering | None:
    """Returns what has been drawn before; None if the file is damaged."""
    try:
        content = torch.load(path, weights_only=True)
        digest, found = content.pop("digest"), Rendering(**content)
        return found if digest == _digest(found) else None
    except Exception:  # a damaged file makes it raise almost anything
        return None


def _digest(rendering: Rendering) -> str:
    """Returns what identifies all that is kept, and not the images alone."""
    found = hashlib.sha256(rendering.checksum.encode())
    for values in rendering[:3]:
        found.update(values.numpy().data)
    return found.hexdigest()


def draw_characters(fonts: Sequence[tuple[Path, int]], side: int) -> Rendering:
    """Draws every character with at most 6 of the fonts that have it, chosen by a hash of both."""
    able: dict[int, list[int]] = {}
    for number, (path, index) in enumerate(fonts):
        for code_point in sorted(_characters(path, index)):
            able.setdefault(code_point, []).append(number)
    by_font: list[list[int]] = [[] for _ in fonts]
    for code_point, numbers in able.items():
        for number in sorted(numbers, key=lambda font: _rank(code_point, font))[:MAX_IMAGES]:
            by_font[number].append(code_point)

    drawn: dict[
        int, dict[bytes, int]
    ] = {}  # of a character its images, each with the first font that drew it
    for number, (path, index) in enumerate(fonts):
        font = _open(path, index, side)
        for code_point in by_font[number]:
            image = _draw(font, chr(code_point), side)
            if image is not None:
                drawn.setdefault(code_point, {}).setdefault(image, number)
    classes = {code: images for code, images in sorted(drawn.items()) if len(images) >= MIN_IMAGES}
    if not classes:
        raise ValueError(
            f"the {len(fonts)} fonts draw no Han character {MIN_IMAGES} times: pass at least {MIN_IMAGES} "
            "different fonts of Chinese or Japanese"
        )
    ink = bytearray().join(image for images in classes.values() for image in images)
    counts = torch.tensor([len(images) for images in classes.values()], device="cpu")
    return Rendering(
        images=torch.frombuffer(ink, dtype=torch.uint8).view(-1, side, side),
        code_points=torch.tensor(list(classes), device="cpu").repeat_interleave(counts),
        fonts=torch.tensor([font for images in classes.values() for font in images.values()], device="cpu"),
        checksum=hashlib.sha256(ink).hexdigest()[:16],
    )


def _characters(path: Path, index: int) -> set[int]:
    """Returns the code points that a font has a glyph for."""
    from fontTools.ttLib import TTFont

    number = index if path.suffix.lower() == ".ttc" else -1
    try:
        with path.open("rb") as file, TTFont(file, fontNumber=number, lazy=True) as font:
            return set(font.getBestCmap() or ()).intersection(CODE_POINTS)
    except OSError:
        raise
    except Exception as error:  # a damaged file makes it raise almost anything
        raise ValueError(
            f"{path} cannot be read as a TrueType or OpenType font ({error}): take it away, or get it again"
        ) from error


def _rank(code_point: int, font: int) -> bytes:
    return hashlib.md5(f"{code_point} {font}".encode(), usedforsecurity=False).digest()


def _open(path: Path, index: int, side: int) -> FreeTypeFont:
    from PIL import ImageFont

    try:
        # The basic layout, which does not depend on what Pillow was built with.
        return ImageFont.truetype(path, side * 7 // 8, index, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be drawn by FreeType ({error}): take it away, or get it again"
        ) from error


def _draw(font: FreeTypeFont, character: str, side: int) -> bytes | None:
    """Returns the centred character, shrunk where it would not fit; None for a blank one."""
    from PIL import Image, ImageDraw

    canvas = Image.new("L", (2 * side, 2 * side))
    try:
        ImageDraw.Draw(canvas).text((side, side), character, fill=255, font=font, anchor="mm")
    except OSError:  # a few glyphs of old fonts have instructions that FreeType refuses
        return None
    box = canvas.getbbox()
    if box is None:
        return None
    ink = canvas.crop(box)
    largest, available = max(ink.size), side - 2
    if largest > available:
        width, height = (max(1, round(length * available / largest)) for length in ink.size)
        ink = ink.resize((width, height), Image.Resampling.BILINEAR)
    image = Image.new("L", (side, side))
    image.paste(ink, ((side - ink.width) // 2, (side - ink.height) // 2))
    return image.tobytes()
