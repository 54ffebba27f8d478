"""Trains one method on Glyphs; the whole state can be saved and restored between any two steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.demo.evaluation import embed, retrieval_accuracy
from benchmarks.demo.methods import METHODS, MemorySetup
from benchmarks.engine.batches import EpochBatches
from benchmarks.engine.checkpoint import loss_state, restore_loss
from benchmarks.engine.distortion import distort
from benchmarks.engine.embedding_diagnostics import embedding_diagnostics
from benchmarks.engine.network import GlyphNet
from benchmarks.engine.randomness import generator_for, seed_for
from benchmarks.engine.run_diagnostics import RunDiagnostics, Tables, embed_without_trace
from pml_xbn.datasets import Glyphs
from pml_xbn.diagnostics import feature_drift

_PROBE_SIZE = 64


@dataclass(frozen=True)
class Settings:
    """Everything that a result depends on, but for the method.

    Attributes:
        batch_size: images per step, a multiple of ``images_per_class``.
        images_per_class: images of each class in a batch.
        memory_ratio: rows in memory as a share of the training images.
        seed: initial weights, batches and training distortion; the test distortion is fixed.
        embedding_size: length of an embedding.
        learning_rate: of AdamW in the first epoch.
        decay: factor on the learning rate after every second epoch.
        drift_every: steps from one measurement of feature drift to the next.
        diagnostics_every: steps from one measurement of all diagnostics to the next; 0 for none.
        classes: use only so many classes of each half; None for all.
        norm: normalization within the network, "batch" or "group".
    """

    batch_size: int = 16
    images_per_class: int = 4
    memory_ratio: float = 0.03
    seed: int = 0
    embedding_size: int = 128
    learning_rate: float = 1e-3
    decay: float = 0.33
    drift_every: int = 20
    diagnostics_every: int = 200
    classes: int | None = None
    norm: str = "batch"


@dataclass
class History:
    """What a run has measured so far.

    Attributes:
        epochs: one row per epoch: epoch, recall_at_1, recall_at_10, map_at_r, and loss and drift
            as means over the epoch.
        steps: one row per drift measurement: step (counted over all epochs), loss, drift.
        diagnostics: what `RunDiagnostics` measured, rows by table; and per epoch the table embeddings.
        step_times: seconds of every training step, with its diagnostics if it had any.
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)
    diagnostics: Tables = field(default_factory=dict)
    step_times: list[float] = field(default_factory=list)


class Task:
    """Images, labels and batches, shared by all runs of a comparison."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        train, test = Glyphs("train"), Glyphs("test")
        self.checksum, self.matplotlib_version = train.checksum, train.matplotlib_version
        self.images, self.labels = _first_classes(train, settings.classes, device)
        test_images, self.test_labels = _first_classes(test, settings.classes, device)
        self.test_images = distort(test_images, generator_for("test"))
        self.test_superclasses = test.superclasses
        self.batches = EpochBatches(
            self.labels.cpu(), settings.batch_size, settings.images_per_class, settings.seed
        )
        probe = torch.randperm(len(self.images), generator=generator_for("probe"))[:_PROBE_SIZE]
        self.probe = distort(self.images[probe.to(device)], generator_for("probe distortion"))
        self.memory_setup = MemorySetup(
            embedding_size=settings.embedding_size,
            memory_size=max(settings.batch_size, round(settings.memory_ratio * len(self.images))),
            steps_per_epoch=len(self.batches),
            superclasses=train.superclasses,
        )


def _first_classes(dataset: Glyphs, classes: int | None, device: torch.device) -> tuple[Tensor, Tensor]:
    size = len(dataset) if classes is None else int((dataset.labels < classes).sum())
    return dataset.images[:size, None].to(device), dataset.labels[:size].to(device)


class Run:
    """The training of one method.

    Args:
        task: data and settings.
        method: a key of `METHODS`.
    """

    def __init__(self, task: Task, method: str) -> None:
        settings = task.settings
        self.task = task
        torch.manual_seed(seed_for(settings.seed, "weights"))
        self.model = GlyphNet(settings.embedding_size, settings.norm).to(task.device)
        self.loss_fn = METHODS[method](task.memory_setup).to(task.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.learning_rate)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, settings.decay)
        self.epoch, self.step = 0, 0
        self.history = History()
        self._diagnostics = RunDiagnostics(
            self.loss_fn,
            settings.diagnostics_every,
            settings.batch_size,
            lambda: embed(self.model, task.probe),
            self._embed_steps,
        )

    def start_from(self, other: Run) -> None:
        """Takes over another run's state, but for its loss and what is known of its memory."""
        # A copy, since an optimizer goes on to use the very tensors that it loads.
        state, ours = copy.deepcopy(other.state_dict()), self.state_dict()
        self.load_state_dict({**state, **{name: ours[name] for name in ("loss_fn", "diagnostics")}})
        self.history.step_times.clear()

    def train_epoch(
        self, progress: Callable[[Iterable[int]], Iterable[int]], after_step: Callable[[], None]
    ) -> None:
        """Trains to the end of the current epoch and evaluates.

        Args:
            progress: wraps the iteration over the remaining steps, a progress bar for example.
            after_step: called after every step, a moment at which the state may be saved.
        """
        batches = self.task.batches.epoch(self.epoch)
        for step in progress(range(self.step, len(batches))):
            self._train_step(batches[step])
            self.step = step + 1
            after_step()
        self.scheduler.step()
        self._evaluate()
        self.epoch, self.step = self.epoch + 1, 0

    def _train_step(self, batch: Tensor) -> None:
        settings, task = self.task.settings, self.task
        global_step = self.epoch * len(task.batches) + self.step
        batch = batch.to(task.device)
        images, labels = self._images(batch, self.epoch, self.step), task.labels[batch]

        measured = self.step % settings.drift_every == 0
        before = embed(self.model, task.probe) if measured else None
        start = self._now()
        self.optimizer.zero_grad()
        with self._diagnostics.watch(global_step):
            loss = self._loss(images, labels)
        loss.backward()
        self.optimizer.step()
        self.history.step_times.append(self._now() - start)
        if before is not None:
            drift = feature_drift(embed(self.model, task.probe), before).mean
            self.history.steps.append({"step": global_step, "loss": loss.item(), "drift": drift.item()})
        self._diagnostics.update(global_step, self.history.diagnostics)

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.loss_fn(self.model(images), labels)
        return loss

    def _images(self, batch: Tensor, epoch: int, step: int) -> Tensor:
        """The images of a batch under the distortion of their step."""
        generator = generator_for(self.task.settings.seed, epoch, step)
        return distort(self.task.images[batch.to(self.task.device)], generator)

    def _embed_steps(self, steps: list[int]) -> Tensor:
        """The images of earlier steps, embedded as they were then by the model as it is."""
        batches, embeddings = self.task.batches, []
        for epoch, step in (divmod(global_step, len(batches)) for global_step in steps):
            images = self._images(batches.epoch(epoch)[step], epoch, step)
            embeddings.append(embed_without_trace(self.model, images))
        return torch.cat(embeddings)

    def _now(self) -> float:
        if self.task.device.type == "cuda":
            torch.cuda.synchronize(self.task.device)
        return time.perf_counter()

    def _evaluate(self) -> None:
        task, embeddings = self.task, embed(self.model, self.task.test_images)
        accuracy = retrieval_accuracy(embeddings, task.test_labels)
        first_step = self.epoch * len(task.batches)
        rows = [row for row in self.history.steps if row["step"] >= first_step]
        means = {key: sum(row[key] for row in rows) / len(rows) for key in ("loss", "drift")}
        self.history.epochs.append({"epoch": self.epoch + 1, **accuracy, **means})
        if task.settings.diagnostics_every:
            row = embedding_diagnostics(embeddings, task.test_labels, task.test_superclasses)
            self.history.diagnostics.setdefault("embeddings", []).append({"epoch": self.epoch + 1, **row})

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on from here, bit for bit."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "loss_fn": loss_state(self.loss_fn),
            "diagnostics": self._diagnostics.state_dict(),
            "history": vars(self.history),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.step = state["epoch"], state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        restore_loss(self.loss_fn, state["loss_fn"])
        self._diagnostics.load_state_dict(state["diagnostics"])
        self.history = History(**copy.deepcopy(state["history"]))
