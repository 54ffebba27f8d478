"""Han as the study's other data sets are: clean images to train on, and distorted ones to score."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from benchmarks.engine.distortion import distort
from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.randomness import generator_for
from pml_xbn.datasets import Han


@lru_cache(maxsize=4)  # a process that trains many times reads them once
def load_han(
    root: Path, split: str, classes: int | None, side: int = 32, distortion: float = 1.0
) -> LabelledImages:
    """Returns the training images as they are, or those of another split distorted.

    Args:
        root: folder of the fonts, and of the images that they have drawn.
        split: "train", "validation" or "test".
        classes: only so many; None for all.
        side: of the images in pixels.
        distortion: strength of that of the images that nothing trains on.
    """
    han = Han(split, root, distortion=0, side=side)
    chosen = slice(None) if classes is None else han.labels < classes
    images = han.images[chosen].unsqueeze(1)
    if split != "train":
        images = distort(images, generator_for("han", split), distortion)
    return LabelledImages(images, han.labels[chosen], han.superclasses[:classes], "Han", han.checksum)
