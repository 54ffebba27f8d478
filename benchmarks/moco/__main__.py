"""MoCo with a queue that keeps up: Adaptive Cross Batch Normalization, Appendix B.

Two views of every image: the query's encoder learns, the key's follows it with momentum, and the keys of
past batches wait in a queue as negatives. XBN gives them the mean and spread of today's.

    python -m benchmarks.moco
    python -m benchmarks.moco --methods moco xbn axbn centre --epochs 20
    python -m benchmarks.moco --methods moco xbn --momentum 0 --epochs 2  # a key encoder without momentum
    python -m benchmarks.moco --dataset cifar10 --root data --download

Prints a table of kNN accuracy, and writes a picture of it over the epochs, CSV files, logs and a
checkpoint per epoch into --output. The settings are the paper's (batch size 128, momentum 0.99) and, as in
the paper, otherwise those of PML's notebook "MoCo on CIFAR10": queue 4,096, temperature 0.1, 200 epochs,
8 groups for shuffling BN, SGD 0.03 on half a cosine, and a weighted kNN of k = 200 at temperature 0.1.
The paper finds XBN ahead early in training, by about 4 points at epoch 15 on both CIFARs, and by less at
the end. On CIFAR the training images classify the test images. On Glyphs, whose training and test classes are
disjoint, every test image is classified by all others; k = 200 is then far more than the 3 to 16 images of
a class, so that the weights decide.
"""

from __future__ import annotations

from statistics import fmean, median

import torch

from benchmarks.engine import command_line
from benchmarks.engine.command_line import errors_in_one_line
from benchmarks.engine.comparison import Comparison
from benchmarks.engine.history import History, Row
from benchmarks.engine.run import Run
from benchmarks.moco.data import MoCoData, load_data
from benchmarks.moco.settings import DATASETS, Settings
from benchmarks.moco.task import MoCoTask

COLUMNS = {
    "weighted_knn": "kNN",
    "best_weighted_knn": "best kNN",
    "recall_at_1": "Recall@1",
    "loss": "loss",
    "step_ms": "step (ms)",
}


def main() -> None:
    with errors_in_one_line():
        settings = read()
        if settings.dataset == "glyphs":
            torch.set_num_threads(1)  # a network this small gains little from more
        data = load_data(settings)
        comparison = compare(settings, data)
    print(data.summary)
    title = f"MoCo on {DATASETS[settings.dataset]}: batch {settings.batch_size}, queue {settings.queue}"
    panel = {"weighted_knn": (title, "weighted kNN accuracy (%)")}
    text = comparison.report(COLUMNS, _summary, panel, "accuracy.png")
    untrained = next(iter(comparison.histories.values())).epochs[0]
    print(f"kNN accuracy before training: {untrained['weighted_knn']:.1f} %")
    print(text)


def read(arguments: list[str] | None = None) -> Settings:
    """Returns the settings of a command line; CIFAR has more epochs unless they are given."""
    return command_line.read(
        Settings,
        __doc__,
        arguments,
        lambda given: ["--epochs", "200"] if given.get("dataset", "").startswith("cifar") else [],
    )[0]


def compare(settings: Settings, data: MoCoData) -> Comparison:
    """Returns the comparison that the settings ask for."""
    return Comparison(lambda method: Run(MoCoTask(settings, data, method)), settings, data.identity)


def _summary(history: History) -> Row:
    """Returns accuracy after the last epoch and its best; the last epoch's mean loss; median step time."""
    last = history.epochs[-1]
    first_step = (last["epoch"] - 1) * len(history.step_times) / last["epoch"]
    return {
        "weighted_knn": last["weighted_knn"],
        "best_weighted_knn": max(row["weighted_knn"] for row in history.epochs),
        "recall_at_1": last["recall_at_1"],
        "loss": fmean(row["loss"] for row in history.steps if row["step"] >= first_step),
        "step_ms": 1000 * median(history.step_times),
    }


if __name__ == "__main__":
    main()
