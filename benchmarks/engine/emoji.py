"""Emoji as four vendors draw them: a retrieval task on pictures that are not ours."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.distortion import distort
from benchmarks.engine.ink import read_ink
from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.randomness import generator_for, seed_for

VENDORS = ("apple", "google", "twitter", "facebook")
VERSION = "16.0.0"
# The remainders of a class's number that make a split; "final" is for one last test, and nothing else.
SPLITS = {"train": (0, 1), "test": (2,), "final": (3,)}
_FEWEST = 3  # vendors
_SKIN_TONES = "Component"


@lru_cache(maxsize=4)  # a process that trains many times reads them once
def load_emoji(
    root: Path, split: str, classes: int | None, side: int = 32, distortion: float = 1.0
) -> LabelledImages:
    """Returns the training images as they are, or those of another split distorted.

    Every emoji that three or more vendors draw is a class, without skin tones; its category is the
    superclass. The splits have no class in common: half of the classes are to train on, a quarter to test on,
    and a quarter is kept back. The split of an emoji depends on its code points alone.

    Args:
        root: folder of the unpacked packages ``emoji-datasource-apple``, ``-google``, ``-twitter`` and
            ``-facebook``.
        split: a key of `SPLITS`.
        classes: only so many; None for all.
        side: of the images in pixels, a divisor of 64.
        distortion: strength of that of the images that nothing trains on.

    Returns:
        RGB images as ink on paper: 255 minus the colour on a white ground, which leaves 0 for the ground.
    """
    emoji = emoji_entries(root, split)[:classes]
    files = [[*pictures_of(root, one).values()] for one in emoji]
    images = [read_ink(file, side) for class_files in files for file in class_files]
    labels = [label for label, class_files in enumerate(files) for _ in class_files]
    categories = [one["category"] for one in emoji]
    stacked = torch.stack(images)
    checksum = hashlib.sha256(stacked.numpy().tobytes()).hexdigest()[:16]
    if split != "train":
        stacked = distort(stacked, generator_for(split), distortion)
    names = sorted(set(categories))
    superclasses = torch.tensor([names.index(category) for category in categories])
    return LabelledImages(
        stacked, torch.tensor(labels), superclasses, f"Emoji {checksum} ({VERSION})", checksum
    )


def emoji_entries(root: Path, split: str) -> list[dict[str, Any]]:
    """Returns the packages' entries of the emoji that are classes of a split, in the order of labels."""
    return [
        emoji
        for emoji in _table(root)
        if emoji["category"] != _SKIN_TONES
        and sum(emoji[f"has_img_{vendor}"] for vendor in VENDORS) >= _FEWEST
        and seed_for("emoji", emoji["unified"]) % 4 in SPLITS[split]
    ]


def pictures_of(root: Path, entry: dict[str, Any]) -> dict[str, Path]:
    """Returns the files of an emoji's pictures, 64 px wide and high, by vendor."""
    return {
        vendor: root / f"emoji-datasource-{vendor}" / "img" / vendor / "64" / entry["image"]
        for vendor in VENDORS
        if entry[f"has_img_{vendor}"]
    }


def _table(root: Path) -> list[dict[str, Any]]:
    """Returns the packages' entries of all emoji, in the order of code points; they agree."""
    for vendor in VENDORS:
        package = f"emoji-datasource-{vendor}"
        path = root / package / "package.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no {path}: in {root}, run npm pack {package}@{VERSION}, unpack the archive "
                f"and name its folder {package}"
            )
        found = json.loads(path.read_text(encoding="utf-8"))["version"]
        if found != VERSION:
            raise ValueError(f"{path} is of version {found}; the images are those of {VERSION}")
    emoji: list[dict[str, Any]] = json.loads(path.with_name("emoji.json").read_text(encoding="utf-8"))
    return sorted(emoji, key=lambda one: one["unified"])
