"""One run of the study: training, and what the diagnostics say along the way."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory, NormalizedSoftmaxLoss
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim.lr_scheduler import MultiStepLR

from benchmarks.demo.settings import Settings
from benchmarks.demo.task import GlyphsData, GlyphsTask
from benchmarks.engine import checkpoint
from benchmarks.engine.accuracy import embed
from benchmarks.engine.diagnostics import Diagnostics, Measured, embed_without_trace
from benchmarks.engine.history import History, Row
from benchmarks.engine.run import Run
from benchmarks.engine.task import Step
from benchmarks.study.cases import (
    DECAY,
    EPOCHS,
    EVALUATE_EVERY,
    MILDER,
    MILESTONES,
    SLOW_RATE,
    WITH_PROXIES,
    Case,
)
from pml_xbn.diagnostics import AdaptedStaleness

_MEASURE_EVERY = {"fast": 40, "slow": 40, "converged": 400}  # steps
_RATES = {512: 8**0.5}  # of the learning rate; AdamW's is to grow as the root of the batch
_BY_EPOCH = ("epoch", "loss", "recall_at_1", "map_at_r")


class StudyTask(GlyphsTask):
    """The demo's task, which sums up staleness by age, and may re-embed the whole memory.

    Args:
        data: data and settings.
        method: a key of `METHODS`.
        refresh_every: steps between re-embeddings; 0 for none.
        milestones: epochs after which the learning rate falls; None for the demo's.
        evaluate_every: epochs between evaluations.
        **options: of `GlyphsTask`.
    """

    def __init__(
        self,
        data: GlyphsData,
        method: str,
        refresh_every: int = 0,
        milestones: list[int] | None = None,
        evaluate_every: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(data, method, **options)
        self.refresh_every, self.evaluate_every = refresh_every, evaluate_every
        self.proxies: NormalizedSoftmaxLoss | None = None
        if milestones is not None:
            self.scheduler = self.parts["scheduler"] = MultiStepLR(self.optimizer, milestones, DECAY)
        every = data.settings.drift_every
        self.measured = Measured(every, anew_each_epoch=True, drift_over=(), whole_batches=True)
        # Sums over the run of rows, staleness before and after adaptation, by powers of two of the age.
        self.ages: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def train_step(
        self, batch: tuple[Tensor, Tensor], step: Step, diagnostics: Diagnostics
    ) -> dict[str, Tensor]:
        if self.refresh_every and step.total % self.refresh_every == 0:
            self._refresh(diagnostics)
        return super().train_step(batch, step, diagnostics)

    def add_proxies(self) -> None:
        """Adds a softmax over the classes to the loss, whose proxies begin at the classes' means."""
        train, rate = self.data.train, self.optimizer.param_groups[0]["lr"]
        means = torch.zeros(self.data.settings.embedding_size, len(train.superclasses))
        means.index_add_(1, train.labels, embed(self.model, train.images.float() / 255).T)
        self.proxies = NormalizedSoftmaxLoss(means.shape[1], len(means))
        self.proxies.W.data = normalize(means, dim=0)
        self.optimizer.add_param_group({"params": self.proxies.parameters(), "lr": rate})

    def loss_of(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss = super().loss_of(embeddings, labels)
        return loss if self.proxies is None else loss + self.proxies(embeddings, labels)

    def evaluates_after(self, epochs: int) -> bool:
        return epochs % self.evaluate_every == 0

    def _refresh(self, diagnostics: Diagnostics) -> None:
        """Embeds all rows as they were stored, in training mode and in the same batches, as far as there."""
        memory = self.loss_fn
        assert isinstance(memory, CrossBatchMemory)
        rows = memory.embedding_memory
        for step, places, of_batch in diagnostics.stored_batches():
            images = self.data.images(*divmod(step, self.steps_per_epoch))[of_batch]
            rows[places] = embed_without_trace(self.model, images)
        memory.embedding_memory = rows

    def note_staleness(self, staleness: AdaptedStaleness) -> None:
        before, after = staleness
        of_age = zip(before.ages, before.rows_by_age, before.mean_by_age, after.mean_by_age, strict=True)
        for age, rows, mean_before, mean_after in of_age:
            sums = self.ages[int(age).bit_length() - 1]
            for i, value in enumerate((rows, rows * mean_before, rows * mean_after)):
                sums[i] += float(value)


def warm_start_path(case: Case, folder: Path) -> Path:
    return folder / f"warm-{'-'.join(case.warm_start().key)}.pt"


def train_warm_start(case: Case, folder: Path, classes: int | None) -> None:
    """Trains without a memory, and saves the state that runs start from."""
    run = Run(StudyTask(_data(case, classes, is_warm_start=True), "no-xbm", milestones=_milestones(case)))
    for _ in range(EPOCHS[case.regime, case.batch_size][0]):
        run.train_epoch()
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(run.state_dict(), warm_start_path(case, folder))


def train(case: Case, folder: Path, classes: int | None) -> dict[str, Any]:
    """One run: ``result`` is a row of its figures, ``curve`` and ``ages`` are rows of measurements."""
    method, has_proxies = case.method.removesuffix(WITH_PROXIES), case.method.endswith(WITH_PROXIES)
    every = EVALUATE_EVERY.get((case.regime, case.batch_size), 1)
    task = StudyTask(_data(case, classes), method, case.refresh_every, _milestones(case), every)
    run = Run(task)
    state = checkpoint.load(warm_start_path(case, folder), task.device)
    if case.regime == "slow":
        task.model.load_state_dict(state["model"])
        run.epoch = state["epoch"]
    else:
        run.start_from(state, keep=("history", "loss_fn", "diagnostics"))
    if has_proxies:
        task.add_proxies()
    for _ in range(EPOCHS[case.regime, case.batch_size][1]):
        run.train_epoch()
    epochs, curve = run.history.epochs, _curve(run.history)
    numbers = dict(run.history.diagnostics["embeddings"][-1])
    del numbers["epoch"]
    result = {name: epochs[-1][name] for name in ("recall_at_1", "recall_at_10", "map_at_r")}
    result["best_recall_at_1"] = max(row["recall_at_1"] for row in epochs)
    result["drift"] = sum(row["drift"] for row in epochs) / len(epochs)
    result["minutes"] = sum(run.history.step_times) / 60
    result |= _means(curve)
    result |= {name: number for name, number in numbers.items() if not name.startswith("superclass")}
    result["superclass_nearest"] = numbers["superclass_within_1"]
    drift = {row["step"]: row["drift"] for row in run.history.steps}
    return {
        "result": result,
        "curve": [{"drift": drift.get(row["step"]), **row} for row in curve],
        "epochs": [{name: row[name] for name in _BY_EPOCH} for row in epochs],
        "ages": [
            {"age_from": 2**age, "rows": rows, "before": before / rows, "after": after / rows}
            for age, (rows, before, after) in sorted(task.ages.items())
        ],
    }


def _data(case: Case, classes: int | None, is_warm_start: bool = False) -> GlyphsData:
    rate = Settings.learning_rate * _RATES.get(case.batch_size, 1)
    settings = Settings(
        batch_size=case.batch_size,
        memory_ratio=case.memory_ratio,
        seed=case.seed,
        norm=case.norm,
        learning_rate=rate * SLOW_RATE if case.regime == "slow" and not is_warm_start else rate,
        drift_every=_MEASURE_EVERY[case.regime],
        distortion=MILDER if case.regime == "converged" else 1.0,
        classes=classes,
    )
    return GlyphsData(settings, torch.device("cpu"))


def _milestones(case: Case) -> list[int] | None:
    """Of the regimes that go on to the end."""
    epochs = sum(EPOCHS[case.regime, case.batch_size])
    return [round(share * epochs) for share in MILESTONES] if case.regime == "converged" else None


def _curve(history: History) -> list[Row]:
    """The measurements of the memory, a row for every step that has any."""
    tables = (history.diagnostics.get(name, []) for name in ("staleness", "push", "valid_pairs"))
    return [
        {
            "step": stale["step"],
            "staleness_before": stale["before_mean"],
            "staleness_after": stale["after_mean"],
            **{f"push_{name}": value for name, value in push.items() if name != "step"},
            **{f"valid_{name}": value for name, value in pairs.items() if name != "step"},
        }
        for stale, push, pairs in zip(*tables, strict=True)
    ]


def _means(curve: list[Row]) -> Row:
    """Over the measured steps, but for the first, when the memory is empty."""
    rows = curve[1:]
    names = [name for name in rows[0] if name != "step"] if rows else []
    return {name: sum(row[name] for row in rows) / len(rows) for name in names}
