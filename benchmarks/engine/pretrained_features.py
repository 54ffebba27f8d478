"""What the frozen part of a pretrained network makes of a data set, computed once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.engine.distortion import distort
from benchmarks.engine.efficientnet import LAST_STAGE, frozen_features, load_network
from benchmarks.engine.emoji import load_emoji
from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.randomness import generator_for

COPIES = 4  # of every training image, each distorted in its own way
DISTORTION = 0.6
SIDE = 64


def load_features(
    root: Path,
    split: str,
    classes: int | None,
    kind: str,
    stages: int = LAST_STAGE,
    load_images: Callable[[Path, str, int | None, int, float], LabelledImages] = load_emoji,
) -> LabelledImages:
    """Returns the features of a split's images, in the order of ``load_images``, and keeps them in ``root``.

    They are (N, copies, ...), one copy of images that nothing trains on; "early" are the output of the
    first ``stages``, "pooled" that of the whole network.
    """
    strength = 0.0 if split == "train" else DISTORTION
    images = load_images(root, split, classes, SIDE, strength)
    of_stages = "" if stages == LAST_STAGE else f"-{stages}"
    path = root / "features" / f"{split}-{images.checksum}{of_stages}.pt"
    if not path.exists():
        network, found = load_network(), []
        for number in range(COPIES if split == "train" else 1):
            ink = images.images
            if split == "train":
                ink = distort(ink, generator_for("features", number), DISTORTION)
            found.append([features.half() for features in frozen_features(network, ink, stages)])
        early, pooled = (torch.stack(copies, dim=1) for copies in zip(*found, strict=True))
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")  # other jobs may compute them at the same time
        torch.save({"early": early, "pooled": pooled}, unfinished)
        unfinished.replace(path)
    features = torch.load(path, weights_only=True)[kind].float()
    return images._replace(images=features, name=f"{kind} features of {images.name}")
