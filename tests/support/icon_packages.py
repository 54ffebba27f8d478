"""Writes packages of icons in their own format, with a handful of icons each."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.engine.icons import STYLES, VERSIONS

NAMES = tuple(f"{word}-{number}" for word in ("arrow", "file", "user") for number in range(8))
FEW = ("moon", "sun")  # that three authors have drawn


def write_icons(root: Path) -> None:
    """Five authors draw every name, those with styles two of them; all hide one more name."""
    for number, package in enumerate(VERSIONS):
        style = STYLES.get(package, "")
        names = NAMES if number < 5 else ()
        if package in STYLES:
            names = NAMES[:2]
        names = (*names, *(FEW if number < 3 else ()))
        icons = {f"{name}{style}": _icon(i, number) for i, name in enumerate(names)}
        if style:
            icons["moon-filled"] = _icon(0, number)  # another style
        icons[f"hidden{style}"] = {**_icon(1, number), "hidden": True}
        sizes = {} if number == 0 else {"width": 24, "height": 24}
        folder = root / package
        folder.mkdir(parents=True)
        for file, value in (
            ("package.json", {"name": f"@iconify-json/{package}", "version": VERSIONS[package]}),
            ("icons.json", {"prefix": package, "icons": icons, **sizes}),
        ):
            (folder / file).write_text(json.dumps(value), encoding="utf-8")


def _icon(name: int, author: int) -> dict[str, object]:
    side = 4 + name % 8
    square = f'<path fill="currentColor" d="M{author % 5} {author % 3}h{side}v{4 + name // 8}h-{side}z"/>'
    return {"body": square, "width": 20} if author == 1 else {"body": square}
