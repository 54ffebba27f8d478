"""A folder of images as people have them: 40 classes of 12, and what does not belong there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES, IMAGES, SIZE = 40, 12, 24


def write_products(folder: Path) -> Path:
    """Writes the images, one of them truncated, an empty subfolder and a hidden one; returns an image."""
    generator = np.random.default_rng(0)
    for number in range(CLASSES):
        pattern = generator.uniform(0, 255, (4, 4, 3)).repeat(SIZE // 4, 0).repeat(SIZE // 4, 1)
        (folder / f"product {number:02}").mkdir(parents=True)
        for copy in range(IMAGES):
            # Noise and brightness hide the pattern.
            pixels = pattern * generator.uniform(0.3, 1) + generator.normal(0, 60, pattern.shape)
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(folder / f"product {number:02}" / f"{copy:02}.{'png' if copy % 2 else 'jpg'}")
    # One class lies elsewhere, and is linked to.
    elsewhere = folder.parent / f"elsewhere of {folder.name}"
    (folder / "product 11").rename(elsewhere)
    (folder / "product 11").symlink_to(elsewhere)
    truncated = folder / "product 07" / "00.jpg"
    truncated.write_bytes(truncated.read_bytes()[:300])
    (folder / "empty").mkdir()
    (folder / ".hidden").mkdir()
    Image.new("RGB", (SIZE, SIZE)).save(folder / ".hidden" / "00.png")
    return folder / "product 00" / "01.png"
