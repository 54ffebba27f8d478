"""Fonts of a few Han characters, each a pattern of squares: what `Han` is drawn with in tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from pml_xbn.datasets.han_fonts import FONTS
from pml_xbn.datasets.han_rendering import load_or_draw

CHARACTERS = range(0x4E00, 0x4E40)
_GRID, _EM, _FONTS = 7, 1050, len(FONTS)


def write_fonts(folder: Path, characters: Sequence[Sequence[int]]) -> list[Path]:
    """Writes a font for each sequence of characters; a character looks alike in all, but for a square."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder / f"tiny{number}.ttf", codes, number) for number, codes in enumerate(characters)]


def draw_tiny_han(root: Path) -> None:
    """Writes the images that `Han` would draw with its packages, drawn with tiny fonts by their names."""
    from fontTools.ttLib import TTCollection, TTFont

    root.mkdir(parents=True, exist_ok=True)
    files = [_write(root / font.file, CHARACTERS, number) for number, font in enumerate(FONTS)]
    for path, font in zip(files, FONTS, strict=True):
        if path.suffix == ".ttc":
            collection = TTCollection()
            collection.fonts = [TTFont(path) for _ in range(font.number + 1)]
            collection.save(path)
    load_or_draw([(font.digest, font.number) for font in FONTS], 32, root, lambda: files)
    for path in files:
        path.unlink()


def _write(path: Path, codes: Sequence[int], number: int) -> Path:
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    names = {code: f"uni{code:04X}" for code in codes}
    builder = FontBuilder(_EM, isTTF=True)
    builder.setupGlyphOrder([".notdef", *names.values()])
    builder.setupCharacterMap(names)
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), **{names[c]: _glyph(c, number) for c in codes}})
    builder.setupHorizontalMetrics(dict.fromkeys([".notdef", *names.values()], (_EM, 0)))
    builder.setupHorizontalHeader(ascent=_EM, descent=0)
    builder.setupNameTable({"familyName": path.stem, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return path


def _glyph(code: int, number: int) -> object:
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen, side = TTGlyphPen(None), _EM // _GRID
    cells = [(x, y) for x in range(_GRID) for y in range(_GRID)]
    chosen = {*random.Random(code).sample(cells[_FONTS:], 4), cells[number]}
    for x, y in sorted(chosen):
        left, bottom = x * side, y * side
        pen.moveTo((left, bottom))
        for corner in ((left, bottom + side), (left + side, bottom + side), (left + side, bottom)):
            pen.lineTo(corner)
        pen.closePath()
    return pen.glyph()
