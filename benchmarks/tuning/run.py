"""One run with a drawn configuration."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.demo.settings import Settings
from benchmarks.demo.task import GlyphsData
from benchmarks.engine.distortion import distort
from benchmarks.engine.glyphs import load_glyphs
from benchmarks.engine.history import Row
from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.randomness import generator_for
from benchmarks.engine.run import Run
from benchmarks.study.cases import MILDER, MILESTONES
from benchmarks.study.task import StudyTask
from benchmarks.tuning.space import Configuration

BATCH_SIZE = 64
_HELD_OUT = 3  # one class of so many
_MEASURE_EVERY = {True: 40, False: 400}  # steps, in the search and in the end


class ValidationData(GlyphsData):
    """The training classes split again: two thirds to train on, a third to choose by."""

    def _halves(self) -> tuple[LabelledImages, LabelledImages]:
        all_images = load_glyphs("train", self.settings.classes, self.device)
        classes = all_images.labels.unique()
        order = torch.randperm(len(classes), generator=generator_for("validation"))
        is_held_out = torch.isin(all_images.labels, classes[order[: len(classes) // _HELD_OUT]])
        train, held_out = (
            all_images._replace(images=all_images.images[part], labels=all_images.labels[part])
            for part in (~is_held_out, is_held_out)
        )
        distorted = distort(held_out.images, generator_for("validation"), self.settings.distortion)
        return train, held_out._replace(images=distorted)


def train(
    method: str, configuration: Configuration, seed: int, epochs: int, classes: int | None, is_search: bool
) -> Row:
    """Trains, and returns the accuracy after the last epoch, and the minutes.

    Args:
        method: a key of `METHODS`.
        configuration: its settings.
        seed: of weights, batches and distortion.
        epochs: of which the learning rate and the warm-up take shares.
        classes: train and evaluate on so many classes each; None for all.
        is_search: train on two thirds of the training classes and evaluate on the rest, else on the test's.
    """
    settings = Settings(
        batch_size=BATCH_SIZE,
        memory_ratio=configuration.memory_share,
        seed=seed,
        learning_rate=configuration.learning_rate,
        weight_decay=configuration.weight_decay,
        distortion=MILDER,
        drift_every=_MEASURE_EVERY[is_search],
        classes=classes,
    )
    data = (ValidationData if is_search else GlyphsData)(settings, torch.device("cpu"))
    warmup = round(configuration.warmup * epochs) * len(data.batches)
    # A configuration with which training diverges is a bad one, and no error.
    options: dict[str, Any] = {} if method == "no-xbm" else {"warmup": warmup, "nonfinite": "ignore"}
    task = StudyTask(
        data,
        method,
        milestones=[round(share * epochs) for share in MILESTONES],
        evaluate_every=epochs,
        **configuration.build_loss(),
        **options,
    )
    run = Run(task)
    for _ in range(epochs):
        run.train_epoch()
    accuracy = run.history.epochs[-1]
    row = {name: accuracy[name] for name in ("recall_at_1", "map_at_r")}
    row["minutes"] = sum(run.history.step_times) / 60
    return row
