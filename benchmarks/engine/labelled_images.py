"""What a data set is to an experiment."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class LabelledImages(NamedTuple):
    """Images and labels of one split.

    Attributes:
        images: (N, C, H, W), uint8 as they are or float as they are distorted.
        labels: (N,).
        superclasses: label -> superclass.
        name: the data set in words.
        checksum: differs where the images do.
    """

    images: Tensor
    labels: Tensor
    superclasses: Tensor
    name: str
    checksum: str
