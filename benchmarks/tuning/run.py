"""One run with a drawn configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.demo.settings import Settings
from benchmarks.engine.distortion import distort
from benchmarks.engine.emoji import load_emoji
from benchmarks.engine.history import Row
from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.randomness import generator_for
from benchmarks.engine.run import Run
from benchmarks.study.cases import MILDER, MILESTONES
from benchmarks.study.data_sets import EmojiData
from benchmarks.study.task import StudyTask
from benchmarks.tuning.results import FINAL, Trial
from benchmarks.tuning.space import draw

_HELD_OUT = 3  # one class of so many
_SIDE = 32


class ValidationData(EmojiData):
    """The training classes split again: two thirds to train on, a third to choose by."""

    def _halves(self) -> tuple[LabelledImages, LabelledImages]:
        all_images = load_emoji(self._root, "train", self.settings.classes, self._side)
        classes = all_images.labels.unique()
        order = torch.randperm(len(classes), generator=generator_for("validation"))
        is_held_out = torch.isin(all_images.labels, classes[order[: len(classes) // _HELD_OUT]])
        train, held_out = (
            all_images._replace(images=all_images.images[part], labels=all_images.labels[part])
            for part in (~is_held_out, is_held_out)
        )
        distorted = distort(held_out.images, generator_for("validation"), self.settings.distortion)
        return train, held_out._replace(images=distorted)


class FinalData(EmojiData):
    """All training classes, and those that are kept back for one last test."""

    def _halves(self) -> tuple[LabelledImages, LabelledImages]:
        final = load_emoji(self._root, "final", self.settings.classes, self._side, self.settings.distortion)
        return super()._halves()[0], final


def train(trial: Trial, epochs: int, classes: int | None, root: Path) -> Row:
    """Trains, and returns the accuracy after the last epoch, and the minutes of the processor."""
    configuration = draw(trial.number)
    settings = Settings(
        memory_ratio=configuration.memory_share,
        batch_size=64,
        seed=trial.seed,
        learning_rate=configuration.learning_rate,
        weight_decay=configuration.weight_decay,
        distortion=MILDER,
        drift_every=400,
        classes=classes,
    )
    data = (FinalData if trial.stage == FINAL else ValidationData)(settings, root, _SIDE)
    # A configuration with which training diverges is a bad one, and no error.
    options: dict[str, Any] = {"nonfinite": "ignore"}
    options["warmup"] = round(configuration.warmup * epochs) * len(data.batches)
    if trial.method == "xbn":
        options["batch_loss_weight"] = configuration.batch_loss_weight
    task = StudyTask(
        data,
        trial.method,
        milestones=[round(share * epochs) for share in MILESTONES],
        evaluate_every=epochs,
        **configuration.build_loss(),
        **({} if trial.method == "no-xbm" else options),
    )
    run = Run(task)
    for _ in range(epochs):
        run.train_epoch()
    accuracy = run.history.epochs[-1]
    row = {name: accuracy[name] for name in ("recall_at_1", "map_at_r")}
    return row | {"minutes": sum(run.history.step_times) / 60}
