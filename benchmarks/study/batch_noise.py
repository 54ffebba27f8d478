"""How far is a stored row from its fresh embedding because of its batch, and how far because of its age?

    python -m benchmarks.study.batch_noise --emoji data/emoji    (four runs, five minutes of a core)

Batch normalization that trains gives an image another embedding in every batch. A row that was stored ``age``
steps ago is compared with two embeddings of its image by the model as it is: one in the very batch that it
came in with, from which it differs by its age alone, and one among other images, from which it differs by
both. Similarities of pairs are measured likewise: of two images that share a batch,
and of the same two apart.

Writes ``batch_noise.csv`` to ``benchmarks/results``: means of squared distances of unit-length rows, and of
cosines.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
import tyro
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.engine.diagnostics import embed_without_trace
from benchmarks.engine.results import RESULTS, write_csv
from benchmarks.engine.run import Run
from benchmarks.engine.trial import at_most
from benchmarks.study.budget import Budget
from benchmarks.study.cases import Case
from benchmarks.study.data_sets import EMOJI_ROOT, Roots
from benchmarks.study.run import begin

FILE = "batch_noise.csv"
AGES = (0, 1, 2, 5, 10, 20, 50, 100)  # steps
STEPS_OF_AN_AGE = 4  # from it on
MEASURED_AFTER = (1, 8, 16)  # epochs; the rate has fallen by the last
CASES = tuple(
    Case("centre", 0, batch_size, 0.5, norm, str(Budget("pretrained", 16, rate=0.3)), 1)
    for batch_size, norm in product((16, 64), ("batch", "frozen"))
)


@dataclass(frozen=True)
class Settings:
    """Where the images are, and where the figures go."""

    emoji: Path = EMOJI_ROOT
    output: Path = RESULTS
    classes: int | None = None  # train on so many, to try it out


class Batch(NamedTuple):
    """Images of a batch in the order of its classes, and rows as they were stored, of unit length."""

    images: Tensor
    labels: Tensor
    stored: Tensor


class Recorded:
    """The batches of the last steps of a run, by step."""

    def __init__(self, run: Run) -> None:
        self.run, self.batches = run, dict[int, Batch]()

    def note(self) -> bool:
        """Notes the step that has just been taken; asks for no stop."""
        run: Any = self.run
        task, size = run.task, run.task.rows_per_step
        memory = task.loss_fn
        places = (memory.queue_idx - size + torch.arange(size)) % memory.memory_size
        labels, order = memory.label_memory[places].sort(stable=True)
        images = task.data.images(run.epoch, run.step - 1)[order]
        step = run.epoch * task.steps_per_epoch + run.step - 1
        self.batches[step] = Batch(images, labels, normalize(memory.embedding_memory[places][order]))
        self.batches.pop(step - max(AGES) - STEPS_OF_AN_AGE, None)
        return False

    def at_age(self, age: int) -> Iterator[int]:
        """Yields the steps of that age and a little more, as far as they are recorded."""
        newest = max(self.batches)
        yield from (s for s in range(newest - age, newest - age - STEPS_OF_AN_AGE, -1) if s in self.batches)


def embed_in_its_batch(model: Any, batch: Batch) -> Tensor:
    return normalize(embed_without_trace(model, batch.images))


def embed_among_others(model: Any, batch: Batch, others: list[Batch], draw: random.Random) -> Tensor:
    """Returns rows of every class of a batch, each embedded with the other classes of another batch."""
    rows = torch.empty_like(batch.stored)
    for label in batch.labels.unique():
        own, other = batch.labels == label, draw.choice(others)
        leaves = label if (other.labels == label).any() else other.labels[0]
        around = other.images[other.labels != leaves]
        rows[own] = normalize(embed_without_trace(model, torch.cat([batch.images[own], around])))[
            : int(own.sum())
        ]
    return rows


def measure(recorded: Recorded) -> list[dict[str, float]]:
    """Returns a row for every age: means over rows and pairs."""
    model, draw, found = recorded.run.task.model, random.Random(0), []  # type: ignore[attr-defined]
    for age in AGES:
        figures = []
        for step in recorded.at_age(age):
            batch = recorded.batches[step]
            others = [other for at, other in recorded.batches.items() if at != step]
            same, apart = embed_in_its_batch(model, batch), embed_among_others(model, batch, others, draw)
            figures.append(compare(batch, same, apart))
        if figures:
            found.append({"age": age} | {name: fmean(one[name] for one in figures) for name in figures[0]})
    return found


def compare(batch: Batch, same: Tensor, apart: Tensor) -> dict[str, float]:
    """Returns mean squared distances of rows, and mean cosines of pairs of one class and of two.

    ``same`` is embedded in the batch itself, ``apart`` among other images, both by the model as it is.
    """
    is_positive = batch.labels[:, None] == batch.labels
    is_itself = torch.eye(len(same), dtype=torch.bool)
    figures = {
        "distance": (batch.stored - apart).square().sum(dim=1).mean(),
        "of_age": (batch.stored - same).square().sum(dim=1).mean(),
        "of_batch": (same - apart).square().sum(dim=1).mean(),
    }
    for name, cosines in (("same_batch", same @ same.T), ("other_batch", same @ apart.T)):
        figures[f"positives_{name}"] = cosines[is_positive & ~is_itself].mean()
        figures[f"negatives_{name}"] = cosines[~is_positive].mean()
    return {name: float(value) for name, value in figures.items()}


def main() -> None:
    settings = tyro.cli(Settings, prog="python -m benchmarks.study.batch_noise", description=__doc__)
    rows = []
    for case in CASES:
        run = begin(case, Path(), settings.classes, Roots(settings.emoji))
        recorded = Recorded(run)
        for epoch in range(1, at_most(max(MEASURED_AFTER)) + 1):
            run.train_epoch(stop=recorded.note)
            if epoch in MEASURED_AFTER:
                rows += [{**asdict(case), "epoch": epoch, **figures} for figures in measure(recorded)]
    settings.output.mkdir(parents=True, exist_ok=True)
    write_csv(rows, settings.output / FILE)
    print(f"{settings.output / FILE} is written")


if __name__ == "__main__":
    main()
