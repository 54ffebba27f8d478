"""Icons as sixteen authors draw them: a retrieval task of one colour, on pictures that are not ours."""

from __future__ import annotations

import hashlib
import io
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.distortion import distort
from benchmarks.engine.ink import read_ink
from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.randomness import generator_for, seed_for

# Packages @iconify-json/NAME, each of another author, and their versions.
VERSIONS = {
    "bi": "1.2.7",
    "bx": "1.2.3",
    "carbon": "1.2.29",
    "fa6-solid": "1.2.4",
    "heroicons": "1.2.3",
    "iconoir": "1.2.11",
    "ion": "1.2.7",
    "lucide": "1.2.137",
    "mdi": "1.2.3",
    "mingcute": "1.2.8",
    "octicon": "1.2.36",
    "ph": "1.2.2",
    "ri": "1.2.10",
    "solar": "1.2.13",
    "tabler": "1.2.41",
    "uil": "1.2.3",
}
# What these packages add to the name of an icon for the style that is taken; the others have a style without.
STYLES = {"mingcute": "-line", "octicon": "-24", "ri": "-line", "solar": "-linear"}
# The remainders of a class's number that make a split.
SPLITS = {"train": (0, 1), "test": (2, 3)}
_FEWEST = 4  # authors
_SIDE = 64  # at which icons are drawn
_SIZE = 16  # of an icon without a width or height: the format's default


@lru_cache(maxsize=4)  # a process that trains many times draws them once
def load_icons(
    root: Path, split: str, classes: int | None, side: int = _SIDE, distortion: float = 1.0
) -> LabelledImages:
    """Returns the training images as they are, or those of the other split distorted.

    Every name that four or more authors have drawn is a class; its first word is the superclass. Half of the
    classes are to train on, half to test on. The split of a name depends on the name alone.

    Args:
        root: folder of the unpacked packages, ``tabler`` for ``@iconify-json/tabler`` and so on.
        split: a key of `SPLITS`.
        classes: only so many; None for all.
        side: of the images in pixels, a divisor of 64.
        distortion: strength of that of the images that nothing trains on.

    Returns:
        RGB images as ink on paper, 0 where there is nothing.
    """
    drawn = _drawings(root, split)
    names = sorted(drawn)[:classes]
    images = [_ink(svg, side) for name in names for svg in drawn[name]]
    labels = [label for label, name in enumerate(names) for _ in drawn[name]]
    stacked = torch.stack(images)
    checksum = hashlib.sha256(stacked.numpy().tobytes()).hexdigest()[:16]
    if split != "train":
        stacked = distort(stacked, generator_for("icons", split), distortion)
    first_words = [name.partition("-")[0] for name in names]
    words = sorted(set(first_words))
    superclasses = torch.tensor([words.index(word) for word in first_words])
    return LabelledImages(stacked, torch.tensor(labels), superclasses, f"Icons {checksum}", checksum)


def _drawings(root: Path, split: str) -> dict[str, list[str]]:
    """Returns the SVGs of every name that is a class of a split, in the order of the packages' names."""
    drawn: dict[str, list[str]] = {}
    for package, version in VERSIONS.items():
        icons, style = _package(root, package, version), STYLES.get(package, "")
        for name, icon in icons["icons"].items():
            if name.endswith(style) and not icon.get("hidden"):
                drawn.setdefault(name.removesuffix(style), []).append(_svg(icon, icons))
    return {
        name: svgs
        for name, svgs in drawn.items()
        if len(svgs) >= _FEWEST and seed_for("icons", name) % 4 in SPLITS[split]
    }


def _package(root: Path, package: str, version: str) -> dict[str, Any]:
    """Returns a package's icons, and the size of those that have none of their own."""
    path = root / package / "package.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {path}: in {root}, run npm pack @iconify-json/{package}@{version}, unpack the "
            f"archive and name its folder {package}"
        )
    found = json.loads(path.read_text(encoding="utf-8"))["version"]
    if found != version:
        raise ValueError(f"{path} is of version {found}; the images are those of {version}")
    icons: dict[str, Any] = json.loads(path.with_name("icons.json").read_text(encoding="utf-8"))
    return icons


def _svg(icon: dict[str, Any], package: dict[str, Any]) -> str:
    left, top = icon.get("left", 0), icon.get("top", 0)
    width, height = (icon.get(x, package.get(x, _SIZE)) for x in ("width", "height"))
    box = f'viewBox="{left} {top} {width} {height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} width="{_SIDE}" height="{_SIDE}">{icon["body"]}</svg>'
    )


def _ink(svg: str, side: int) -> Tensor:
    """Returns (3, side, side) uint8; a colour that is not said is black."""
    try:
        import resvg_py

        return read_ink(io.BytesIO(bytes(resvg_py.svg_to_bytes(svg_string=svg))), side)
    except ImportError as error:
        raise ImportError("icons are drawn by resvg-py: pip install resvg-py pillow") from error
