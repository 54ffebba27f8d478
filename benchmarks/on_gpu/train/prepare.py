"""Writes the file of prepared data, where the data sets and their packages are at hand."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.engine.efficientnet import LAST_STAGE, LateStages, load_network
from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.pretrained_features import load_features
from benchmarks.on_gpu.train.prepared import SPLITS_OF_EMOJI, SPLITS_OF_GLYPHS, Prepared, save
from pml_xbn.datasets import Glyphs


def prepare(path: Path, emoji_root: Path, classes: int | None = None) -> None:
    """Writes features of Emoji, images of Glyphs, and the ImageNet weights of the stage that trains."""
    emoji = {}
    for split in SPLITS_OF_EMOJI:
        found = load_features(emoji_root, split, classes, "early")
        emoji[split] = found._replace(images=found.images.half())  # as they are stored there
    late = LateStages(load_network(), embedding_size=1, first=LAST_STAGE)[0]
    glyphs = {split: _glyphs(split, classes) for split in SPLITS_OF_GLYPHS}
    save(Prepared(emoji, glyphs, list(late.state_dict().values())), path)


def _glyphs(split: str, classes: int | None) -> LabelledImages:
    found = Glyphs(split)
    chosen = torch.ones(len(found.labels), dtype=torch.bool) if classes is None else found.labels < classes
    name = f"Glyphs {found.checksum} (matplotlib {found.matplotlib_version})"
    images, labels = found.images[chosen, None], found.labels[chosen]
    return LabelledImages(images, labels, found.superclasses, name, found.checksum)
