"""Writes the emoji packages in their own format, with a handful of images each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

VENDORS = ("apple", "google", "twitter", "facebook")
CATEGORIES = ("Objects", "Flags", "Symbols")
CLASSES = 32  # that three vendors or more draw


def write_emoji(root: Path, version: str = "16.0.0", classes: int = CLASSES) -> None:
    """Of so many emoji every third lacks a vendor; two more have two, and one is a skin tone."""
    numbers = np.random.default_rng(0)
    table = []
    for i in range(classes + 3):
        drawn = dict.fromkeys(VENDORS, True)
        drawn["facebook"] = i % 3 > 0
        if i in (classes, classes + 1):
            drawn = {v: v in ("apple", "google") for v in VENDORS}
        code = f"1F{i:03X}"
        category = CATEGORIES[i % 3] if i < classes + 2 else "Component"
        emoji = {"unified": code, "image": f"{code.lower()}.png", "category": category, "subcategory": "x"}
        table.append(emoji | {f"has_img_{v}": drawn[v] for v in VENDORS})
        likeness = numbers.integers(0, 256, (64, 64, 4), dtype=np.uint8)
        for number, vendor in enumerate(VENDORS):
            if drawn[vendor]:
                noise = numbers.integers(-20, 21, likeness.shape)
                pixels = (likeness + noise).clip(0, 255).astype(np.uint8)
                image = Image.fromarray(pixels, "RGBA")
                path = package(root, vendor) / "img" / vendor / "64" / emoji["image"]
                path.parent.mkdir(parents=True, exist_ok=True)
                # Some of the real ones have a palette, some are grey.
                (image.convert("LA") if number == 3 else image.quantize(64) if number == 2 else image).save(
                    path
                )
    for vendor in VENDORS:
        about = {"name": package(root, vendor).name, "version": version}
        (package(root, vendor) / "package.json").write_text(json.dumps(about), encoding="utf-8")
        # The real table is not in the order of code points.
        (package(root, vendor) / "emoji.json").write_text(json.dumps(table[::-1]), encoding="utf-8")


def package(root: Path, vendor: str) -> Path:
    return root / f"emoji-datasource-{vendor}"
