"""One run of the study: training, and what the diagnostics say along the way."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.demo.evaluation import embed
from benchmarks.demo.training import Run, Settings, Task
from benchmarks.engine.embedding_diagnostics import embedding_diagnostics
from benchmarks.engine.run_diagnostics import embed_without_trace
from benchmarks.study.cases import EPOCHS, SLOW_RATE, Case
from pml_xbn.diagnostics import WatchedLoss, scalars, staleness

_MEASURE_EVERY = 40  # steps
_BATCHES = 8  # of those in memory, whose staleness is measured


class StudyRun(Run):
    """A run that keeps the images of its memory's rows, and measures what the memory does."""

    def __init__(self, task: Task, method: str, refresh_every: int = 0) -> None:
        super().__init__(task, method)
        self.refresh_every = refresh_every
        self.curve: list[dict[str, float]] = []
        # Sums over the run of rows, staleness before and after adaptation, by age.
        self.ages: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        self.memory = self.loss_fn if isinstance(self.loss_fn, CrossBatchMemory) else None
        if self.memory is not None:
            self.images = task.images.new_zeros(self.memory.memory_size, 1, 32, 32, dtype=torch.float32)
            self.num_stored = 0

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        memory, step = self.memory, self.epoch * len(self.task.batches) + self.step
        if memory is None:
            return super()._loss(images, labels)
        if self.refresh_every and step % self.refresh_every == 0:
            self._refresh()
        is_measured = self.step % _MEASURE_EVERY == 0
        stored = memory.embedding_memory.clone() if is_measured else None
        with WatchedLoss(memory) if is_measured else nullcontext() as seen:
            loss: Tensor = memory(self.model(images), labels)
        self._last = torch.arange(self.num_stored, self.num_stored + len(images)) % memory.memory_size
        self.images[self._last] = images
        self.num_stored += len(images)
        if stored is not None and seen is not None:
            self.curve.append({"step": step, **self._staleness(stored), **_push(seen)})
        return loss

    def _batches_in_memory(self) -> list[Tensor]:
        """Places of the rows of each batch that memory still holds, the oldest, perhaps in part, first."""
        size, rows = self.task.settings.batch_size, self.memory.memory_size
        oldest = max(0, self.num_stored - rows)
        starts = range(oldest - oldest % size, self.num_stored, size)
        return [torch.arange(max(oldest, start), start + size) % rows for start in starts]

    def _embed_as_stored(self, places: Tensor) -> Tensor:
        """The images of one batch, embedded as they were then: in training mode, but leaving no trace."""
        return embed_without_trace(self.model, self.images[places])

    def _refresh(self) -> None:
        rows = self.memory.embedding_memory
        for places in self._batches_in_memory():
            rows[places] = self._embed_as_stored(places)
        self.memory.embedding_memory = rows

    def _staleness(self, stored: Tensor) -> dict[str, float]:
        """Of unit vectors, which is what the loss compares, in some batches of the memory before the last."""
        older = [places for places in self._batches_in_memory()[:-1] if len(places) == len(self._last)]
        if not older:
            return {"staleness_before": 0.0, "staleness_after": 0.0}
        chosen = torch.linspace(0, len(older) - 1, min(_BATCHES, len(older))).long().tolist()
        places = torch.cat([older[i] for i in chosen])
        fresh = normalize(torch.cat([self._embed_as_stored(older[i]) for i in chosen]))
        ages = torch.tensor([len(older) - i for i in chosen]).repeat_interleave(len(self._last))
        before = staleness(normalize(stored[places]), fresh, ages)
        after = staleness(normalize(self.memory.embedding_memory[places]), fresh, ages)
        of_age = zip(before.ages, before.rows_by_age, before.mean_by_age, after.mean_by_age, strict=True)
        for age, rows, mean_before, mean_after in of_age:
            sums = self.ages[int(age).bit_length() - 1]
            for i, value in enumerate((rows, rows * mean_before, rows * mean_after)):
                sums[i] += float(value)
        return {"staleness_before": before.mean.item(), "staleness_after": after.mean.item()}


def _push(seen: WatchedLoss) -> dict[str, float]:
    """The push on anchors of unit length, and the valid pairs."""
    push = seen.common_mode_push(normalize=True)
    return {**scalars("push", push), **scalars("valid", seen.valid_pairs())}


def warm_start_path(case: Case, folder: Path) -> Path:
    return folder / f"warm-{'-'.join(case.warm_start().key)}.pt"


def train_warm_start(case: Case, folder: Path, classes: int | None) -> None:
    """Trains without a memory, and saves the state that runs start from."""
    run = StudyRun(_task(case, classes, is_warm_start=True), "no-xbm")
    for _ in range(EPOCHS[case.regime, case.batch_size][0]):
        run.train_epoch(lambda steps: steps, lambda: None)
    path = warm_start_path(case, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(run.state_dict(), part)
    part.replace(path)


def train(case: Case, folder: Path, classes: int | None) -> dict[str, Any]:
    """One run: ``result`` is a row of its figures, ``curve`` and ``ages`` are rows of measurements."""
    task = _task(case, classes)
    run = StudyRun(task, case.method, case.refresh_every)
    state = torch.load(warm_start_path(case, folder), weights_only=True)
    if case.regime == "slow":
        run.model.load_state_dict(state["model"])
        run.epoch = state["epoch"]
    else:
        ours = run.state_dict()
        run.load_state_dict({**state, **{name: ours[name] for name in ("history", "loss_fn", "diagnostics")}})
    for _ in range(EPOCHS[case.regime, case.batch_size][1]):
        run.train_epoch(lambda steps: steps, lambda: None)
    last = run.history.epochs[-1]
    embeddings = embed(run.model, task.test_images)
    numbers = embedding_diagnostics(embeddings, task.test_labels, task.test_superclasses)
    result = {name: last[name] for name in ("recall_at_1", "recall_at_10", "map_at_r")}
    result["best_recall_at_1"] = max(row["recall_at_1"] for row in run.history.epochs)
    result |= {"drift": sum(row["drift"] for row in run.history.epochs) / len(run.history.epochs)}
    result |= _means(run.curve)
    result |= {name: number for name, number in numbers.items() if not name.startswith("superclass")}
    result["superclass_nearest"] = numbers["superclass_within_1"]
    drift = {int(row["step"]): row["drift"] for row in run.history.steps}
    return {
        "result": result,
        "curve": [{"drift": drift.get(int(row["step"])), **row} for row in run.curve],
        "ages": [
            {"age_from": 2**age, "rows": rows, "before": before / rows, "after": after / rows}
            for age, (rows, before, after) in sorted(run.ages.items())
        ],
    }


def _task(case: Case, classes: int | None, is_warm_start: bool = False) -> Task:
    rate = Settings.learning_rate
    return Task(
        Settings(
            batch_size=case.batch_size,
            memory_ratio=case.memory_ratio,
            seed=case.seed,
            norm=case.norm,
            learning_rate=rate * SLOW_RATE if case.regime == "slow" and not is_warm_start else rate,
            drift_every=_MEASURE_EVERY,
            diagnostics_every=0,
            classes=classes,
        ),
        torch.device("cpu"),
    )


def _means(curve: list[dict[str, float]]) -> dict[str, float]:
    """Over the measured steps, but for the first, when the memory is empty."""
    rows = curve[1:]
    names = [name for name in rows[0] if name != "step"] if rows else []
    return {name: sum(row[name] for row in rows) / len(rows) for name in names}
