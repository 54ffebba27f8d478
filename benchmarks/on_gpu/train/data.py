"""Prepared data as the study's runs take them, on a device."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.demo.settings import Settings
from benchmarks.demo.task import GlyphsData
from benchmarks.engine.distortion import distort
from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.randomness import generator_for
from benchmarks.on_gpu.train.last_stage import CHANNELS, LastStage, random_weights
from benchmarks.on_gpu.train.prepared import SPLITS_OF_EMOJI, SPLITS_OF_GLYPHS, Prepared, load
from benchmarks.study.budget import Budget
from benchmarks.study.data_sets import PretrainedData

_CLASSES, _COPIES, _SIDE = 24, 4, 32  # of made-up data


class PreparedSource(NamedTuple):
    """The file and the device; without a file data are made up, to try out a run."""

    path: Path | None
    device: str

    def open(self, settings: Settings, budget: Budget) -> GlyphsData:
        """Returns the data of a run; ValueError if the file holds none of the kind."""
        prepared, device = _read(self.path), torch.device(self.device)
        if budget.data == "pretrained" and budget.trained is None:
            return PreparedFeatures(settings, budget, prepared, device)
        if budget.data == "glyphs":
            return PreparedGlyphs(settings, prepared, device)
        raise ValueError(
            f"{self.path} holds no data for the regime {str(budget)!r}: run it by benchmarks.study"
        )


@lru_cache(maxsize=1)  # a process that trains many times reads it once
def _read(path: Path | None) -> Prepared:
    return made_up() if path is None else load(path)


class PreparedFeatures(PretrainedData):
    """Features of the stages that do not train, and the last stage, which does."""

    def __init__(self, settings: Settings, budget: Budget, prepared: Prepared, device: torch.device) -> None:
        self._prepared, self._budget, self._first = prepared, budget, 1
        GlyphsData.__init__(self, settings, device)

    def _halves(self) -> tuple[LabelledImages, LabelledImages]:
        splits = ("train", "final" if self._budget.is_kept_back else "test")
        train, test = (_moved(self._prepared.emoji[split], self.device) for split in splits)
        train, test = (half._replace(images=half.images.float()) for half in (train, test))
        return train, test._replace(images=test.images[:, 0])

    def network(self) -> nn.Module:
        batch_norm: Any = self.settings.norm
        return LastStage(self._prepared.weights, self.settings.embedding_size, batch_norm)


class PreparedGlyphs(GlyphsData):
    """Images of Glyphs."""

    def __init__(self, settings: Settings, prepared: Prepared, device: torch.device) -> None:
        self._prepared = prepared
        super().__init__(settings, device)

    def _halves(self) -> tuple[LabelledImages, LabelledImages]:
        train, test = (_moved(self._prepared.glyphs[split], self.device) for split in SPLITS_OF_GLYPHS)
        images = distort(test.images, generator_for("test"), self.settings.distortion)
        return train, test._replace(images=images)


def _moved(half: LabelledImages, device: torch.device) -> LabelledImages:
    return half._replace(images=half.images.to(device), labels=half.labels.to(device))


def made_up() -> Prepared:
    """Returns few random data, of the shapes of a prepared file."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(_CLASSES).repeat_interleave(4)

    def half(images: Tensor) -> LabelledImages:
        return LabelledImages(images, labels, torch.arange(_CLASSES) % 3, "made up", "")

    emoji = {
        split: half(torch.rand(len(labels), _COPIES, CHANNELS, 2, 2, generator=draw).half())
        for split in SPLITS_OF_EMOJI
    }
    glyphs = {
        split: half(torch.randint(0, 256, (len(labels), 1, _SIDE, _SIDE), generator=draw, dtype=torch.uint8))
        for split in SPLITS_OF_GLYPHS
    }
    return Prepared(emoji, glyphs, random_weights(0))
