"""What the frozen part of a pretrained network makes of Emoji, computed once."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from benchmarks.engine.distortion import distort
from benchmarks.engine.efficientnet import frozen_features, load_network
from benchmarks.engine.emoji import load_emoji
from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.randomness import generator_for

COPIES = 4  # of every training image, each distorted in its own way
DISTORTION = 0.6
_SIDE = 64


def load_features(root: Path, split: str, classes: int | None, kind: str) -> LabelledImages:
    """Returns the features of a split's images, as `load_emoji` orders them, and keeps them in ``root``.

    They are (N, copies, ...), one copy of images that nothing trains on; "early" are the output of the
    first stages, "pooled" that of the whole network.
    """
    strength = 0.0 if split == "train" else DISTORTION
    emoji = load_emoji(root, split, classes, _SIDE, strength)
    path = root / "features" / f"{split}-{emoji.checksum}.pt"
    if not path.exists():
        network, found = load_network(), []
        for number in range(COPIES if split == "train" else 1):
            images = emoji.images
            if split == "train":
                images = distort(images, generator_for("features", number), DISTORTION)
            found.append([features.half() for features in frozen_features(network, images)])
        early, pooled = (torch.stack(copies, dim=1) for copies in zip(*found, strict=True))
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")  # other jobs may compute them at the same time
        torch.save({"early": early, "pooled": pooled}, unfinished)
        unfinished.replace(path)
    features = torch.load(path, weights_only=True)[kind].float()
    return emoji._replace(images=features, name=f"{kind} features of {emoji.name}")
