"""Glyphs as all experiments see them, the test images under one fixed distortion."""

from __future__ import annotations

from functools import lru_cache

import torch

from benchmarks.engine.distortion import distort
from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.randomness import generator_for
from benchmarks.engine.trial import first_classes
from pml_xbn.datasets import Glyphs


@lru_cache(maxsize=4)  # a process that trains many times draws them once
def load_glyphs(
    split: str, classes: int | None, device: torch.device, distortion: float = 1.0
) -> LabelledImages:
    """Returns the training images as they are, or the test images distorted."""
    glyphs = Glyphs(split)
    chosen = (glyphs.labels < first_classes(len(glyphs.superclasses), classes)).nonzero().flatten()
    images = glyphs.images[chosen, None].to(device)
    if split == "test":
        images = distort(images, generator_for("test"), distortion)
    name = f"Glyphs {glyphs.checksum} (matplotlib {glyphs.matplotlib_version})"
    return LabelledImages(
        images, glyphs.labels[chosen].to(device), glyphs.superclasses, name, glyphs.checksum
    )
