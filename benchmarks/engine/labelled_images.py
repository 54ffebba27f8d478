"""What a data set is to an experiment."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class LabelledImages(NamedTuple):
    """One split: images (N, C, H, W), uint8, or float where distorted; labels (N,); label -> superclass."""

    images: Tensor
    labels: Tensor
    superclasses: Tensor
    name: str
    checksum: str
