"""Data and weights as tensors in one file, which any machine can read that has torch."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.engine.labelled_images import LabelledImages

LARGEST = 40e6  # bytes, so that a file can go where a machine takes no larger ones
SPLITS_OF_EMOJI, SPLITS_OF_GLYPHS = ("train", "test", "final"), ("train", "test")


class Prepared(NamedTuple):
    """What runs need.

    Attributes:
        emoji: by split, features of the stages that do not train, (N, copies, 192, 2, 2) float16.
        glyphs: by split, images (N, 1, 32, 32) uint8, without distortion.
        weights: of the last stage, in the order of its layers.
    """

    emoji: dict[str, LabelledImages]
    glyphs: dict[str, LabelledImages]
    weights: list[Tensor]


def save(prepared: Prepared, path: Path) -> None:
    """Writes the file; ValueError where it would be too large."""
    buffer = io.BytesIO()
    halves = ({name: half._asdict() for name, half in halves.items()} for halves in prepared[:2])
    torch.save([*halves, prepared.weights], buffer)
    packed = gzip.compress(buffer.getvalue(), mtime=0)
    if len(packed) > LARGEST:
        raise ValueError(
            f"{path} would have {len(packed) / 1e6:.0f} MB; at most {LARGEST / 1e6:.0f} are allowed: prepare "
            "fewer classes"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(packed)
    unfinished.replace(path)


def load(path: Path) -> Prepared:
    """Returns what `save` wrote, on the CPU."""
    buffer = io.BytesIO(gzip.decompress(path.read_bytes()))
    emoji, glyphs, weights = torch.load(buffer, map_location="cpu", weights_only=True)
    return Prepared(_halves(emoji), _halves(glyphs), weights)


def _halves(found: dict[str, Any]) -> dict[str, LabelledImages]:
    return {name: LabelledImages(**half) for name, half in found.items()}
