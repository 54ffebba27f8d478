"""The data sets of the study, by the name that a regime begins with.

To add one, write a function that loads its images, with `load_emoji` of `benchmarks/engine` as a pattern, and
add a line to `DATA_SETS`. Its regimes are named as those of the others: "pretrained photographs, 16 epochs".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch import Tensor, nn

from benchmarks.demo.settings import Settings
from benchmarks.demo.task import GlyphsData
from benchmarks.engine.efficientnet import LAST_STAGE, LateStages, load_network
from benchmarks.engine.emoji import load_emoji
from benchmarks.engine.han import load_han
from benchmarks.engine.icons import load_icons
from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.minilm import LastLayer, load_minilm
from benchmarks.engine.pretrained_features import COPIES, SIDE, load_features
from benchmarks.engine.word_senses import load_sense_features
from benchmarks.study.budget import Budget

EMOJI_ROOT = Path("data/emoji")
ICONS_ROOT = Path("data/icons")
LoadImages = Callable[..., LabelledImages]  # as `load_emoji`
_FIRST_STAGES = {None: LAST_STAGE, "last three stages": LAST_STAGE - 2, "whole network": 0}


class EmojiData(GlyphsData):
    """Emoji, which a small network learns from random weights."""

    def __init__(self, settings: Settings, root: Path, side: int) -> None:
        self._root, self._side = root, side
        super().__init__(settings, torch.device("cpu"))

    def _halves(self) -> tuple[LabelledImages, LabelledImages]:
        classes, distortion = self.settings.classes, self.settings.distortion
        train, test = (
            load_emoji(self._root, split, classes, self._side, distortion) for split in ("train", "test")
        )
        return train, test


class HanData(GlyphsData):
    """Ten thousand characters, which a small network learns from random weights."""

    def __init__(self, settings: Settings, root: Path, budget: Budget) -> None:
        self._root, self._budget = root, budget
        super().__init__(settings, torch.device("cpu"))

    def _halves(self) -> tuple[LabelledImages, LabelledImages]:
        settings, side = self.settings, self._budget.side
        splits = ("train", "test" if self._budget.is_kept_back else "validation")
        train, test = (
            load_han(self._root, split, settings.classes, side, settings.distortion) for split in splits
        )
        return train, test


class PretrainedData(GlyphsData):
    """Images, and EfficientNet-Lite0, of which as much trains as the budget says."""

    def __init__(
        self, settings: Settings, root: Path, budget: Budget, load_images: LoadImages = load_emoji
    ) -> None:
        self._root, self._budget, self._load_images = root, budget, load_images
        self._first = _FIRST_STAGES[budget.trained]
        super().__init__(settings, torch.device("cpu"))

    def _halves(self) -> tuple[LabelledImages, LabelledImages]:
        """Returns features of the stages that do not train, of training images in several copies."""
        classes, splits = self.settings.classes, ("train", "final" if self._budget.is_kept_back else "test")
        if not self._first:
            strength = self.settings.distortion
            train, test = (self._load_images(self._root, split, classes, SIDE, strength) for split in splits)
            return train, test
        train, test = (
            load_features(self._root, split, classes, "early", self._first, self._load_images)
            for split in splits
        )
        return train, test._replace(images=test.images[:, 0])

    def distorted(self, places: Tensor, generator: torch.Generator) -> Tensor:
        """Returns one of the copies of each image; distorts the images where the whole network trains."""
        if not self._first:
            return super().distorted(places, generator)
        copies = torch.randint(COPIES, (len(places),), generator=generator).to(places.device)
        return self.train.images[places, copies]

    def network(self) -> nn.Module:
        batch_norm: Any = self.settings.norm
        return LateStages(load_network(), self.settings.embedding_size, self._first, batch_norm)

    def loss_and_miner(self) -> tuple[nn.Module, nn.Module | None]:
        """Returns SupCon without a miner: a small batch of a pretrained network has no pair in its range."""
        if self._budget.loss == "multi-similarity":
            return MultiSimilarityLoss(), MultiSimilarityMiner()
        return super().loss_and_miner()[0], None


class SenseData(PretrainedData):
    """Senses of words, and the last layer of MiniLM, which has no batch normalization."""

    def _halves(self) -> tuple[LabelledImages, LabelledImages]:
        splits = ("train", "final" if self._budget.is_kept_back else "test")
        train, test = (load_sense_features(self._root, split, self.settings.classes) for split in splits)
        return train, test

    def distorted(self, places: Tensor, generator: torch.Generator) -> Tensor:
        """Returns features of texts, which are as they are."""
        return self.train.images[places]

    def network(self) -> nn.Module:
        if self.settings.norm != "layer":
            raise ValueError(f"norm is {self.settings.norm!r}; a text transformer has 'layer'")
        return LastLayer(load_minilm()[0], self.settings.embedding_size)


class DataSet(NamedTuple):
    """How the data of a run are opened, given its settings, the folder and the budget.

    Attributes:
        open: returns the data.
        folder: the name of the folder whose files are read; None where there are no files.
    """

    open: Callable[[Settings, Path, Budget], GlyphsData]
    folder: str | None = "emoji"


DATA_SETS = {
    "glyphs": DataSet(lambda settings, root, budget: GlyphsData(settings, torch.device("cpu")), None),
    "emoji": DataSet(lambda settings, root, budget: EmojiData(settings, root, budget.side)),
    "han": DataSet(HanData, "han"),
    "pretrained": DataSet(PretrainedData),
    "pretrained icons": DataSet(partial(PretrainedData, load_images=load_icons), "icons"),
    "pretrained senses": DataSet(SenseData),
}


class Source(Protocol):
    """Where data come from."""

    def open(self, settings: Settings, budget: Budget) -> GlyphsData:
        """Returns the data of a run."""


class Roots(NamedTuple):
    """Folders of the unpacked packages of emoji, ``emoji-datasource-apple`` and so on, and of icons.

    The files of another data set are read from a folder in ``data``.
    """

    emoji: Path = EMOJI_ROOT
    icons: Path = ICONS_ROOT

    def open(self, settings: Settings, budget: Budget) -> GlyphsData:
        """Returns the data of a run, on the CPU."""
        data_set = DATA_SETS[budget.data]
        folder = data_set.folder or ""
        return data_set.open(settings, self._asdict().get(folder, Path("data") / folder), budget)
