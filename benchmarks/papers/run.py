"""One training run, whose whole state can be saved and restored between any two steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.batches import EpochBatches
from benchmarks.engine.checkpoint import loss_state, restore_loss
from benchmarks.engine.randomness import generator_for, seed_for
from benchmarks.engine.run_diagnostics import RunDiagnostics, Tables
from benchmarks.engine.sync_batch_norm import synchronise_batch_norm
from benchmarks.papers.augmentation import build_transforms
from benchmarks.papers.data import TaskData
from benchmarks.papers.evaluation import Evaluation
from benchmarks.papers.keyed_items import Key, KeyedItems, load
from benchmarks.papers.length import run_length
from benchmarks.papers.methods import LossSetup, build_batch_loss, build_loss, has_memory
from benchmarks.papers.model import build_model, images_per_norm
from benchmarks.papers.optimisation import (
    build_optimizer,
    build_warmup_optimizer,
    clip_gradient,
    gradient_scaler,
    learning_rate,
)
from benchmarks.papers.ranks import Ranks
from benchmarks.papers.reembedding import Reembedding, seed_of_step
from benchmarks.papers.settings import Settings

Progress = Callable[[Iterable[Any], str, int, int], Iterable[Any]]


@dataclass
class History:
    """What a run has measured so far.

    Attributes:
        epochs: one row per epoch: epoch, loss, and the accuracies in per cent.
        steps: one row per entry of the log: step, loss, learning_rate.
        diagnostics: what `RunDiagnostics` measured, rows by table; and per epoch the table embeddings.
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)
    diagnostics: Tables = field(default_factory=dict)


class Run:
    """The training of one method with one seed.

    Nothing in it draws random numbers that depend on what went before: weights, batches, augmentation and
    every step are seeded from the run's seed and their own position.

    Args:
        settings: everything.
        data: the data set.
        ranks: the processes.

    Attributes:
        epoch: epochs that are done.
        step: steps that are done in the one that is not.
        history: measurements.
        images_per_norm: images whose moments batch normalization uses; None without any.

    Raises:
        ValueError: settings that do not go together.
    """

    def __init__(self, settings: Settings, data: TaskData, ranks: Ranks) -> None:
        if settings.batch_size % ranks.world_size:
            raise ValueError(
                f"--batch-size is {settings.batch_size}; it must be a multiple of the "
                f"{ranks.world_size} ranks"
            )
        self.settings, self.data, self.ranks = settings, data, ranks
        self.batches = EpochBatches(
            data.train.labels, settings.batch_size, settings.images_per_class, settings.seed
        )
        self.length = run_length(settings, len(self.batches))
        setup = LossSetup(
            num_classes=data.num_classes,
            memory_size=max(settings.batch_size, round(settings.memory_ratio * len(data.train))),
            steps_per_epoch=self.length.steps_per_epoch,
            superclasses=data.train.superclasses,
            world_size=ranks.world_size,
        )

        torch.manual_seed(seed_for(settings.seed, "weights"))
        self._model, data_config = build_model(settings, self.length.steps)
        self._model.train()
        self.images_per_norm = images_per_norm(settings, self._model, ranks.world_size)
        if self.images_per_norm == settings.batch_size and ranks.world_size > 1:
            self._model = synchronise_batch_norm(self._model, ranks.device)
        self._loss = build_loss(settings, setup).to(ranks.device)
        self._warmup_loss = self._loss
        if has_memory(settings):
            self._warmup_loss = build_batch_loss(settings, setup).to(ranks.device)
        self._model.to(ranks.device)
        if ranks.device.type == "cuda":
            self._model.to(memory_format=torch.channels_last)
        self._train_transform, test_transform = build_transforms(settings, data_config)
        self.evaluation = Evaluation(settings, data, test_transform, ranks)

        new = [*self._model.head.parameters(), *self._warmup_loss.parameters()]
        if self.length.warmup_epochs and not new:
            raise ValueError(
                f"--head {settings.head} has nothing to train alone; pass --warmup-epochs 0 or another head"
            )
        everything = [*self._model.parameters(), *self._loss.parameters()]
        self._warmup_optimizer = build_warmup_optimizer(settings, new) if new else None
        self._optimizer = build_optimizer(settings, everything)
        self._scaler = gradient_scaler(ranks.device.type == "cuda" and settings.mixed_precision == "fp16")
        # Gradients of frozen layers are computed in the first stage and dropped: a model that is wrapped
        # for many ranks cannot change which of its parameters have any.
        self._ranked_model = ranks.wrap(self._model)
        self._ranked_loss = ranks.wrap(self._loss)
        self._ranked_warmup_loss = (
            self._ranked_loss if self._warmup_loss is self._loss else ranks.wrap(self._warmup_loss)
        )

        self.epoch, self.step = 0, 0
        self.history = History()
        self._loss_sum = torch.zeros((), device=ranks.device)
        embedding = Reembedding(
            settings,
            data,
            self._model,
            self._train_transform,
            test_transform,
            ranks,
            self._keys_of,
            self.length.steps_per_epoch,
        )
        self._diagnostics = RunDiagnostics(
            self._loss,
            settings.diagnostics_every,
            settings.batch_size,
            embedding.probe,
            embedding.steps,
        )

    @property
    def is_done(self) -> bool:
        return self.epoch == self.length.epochs

    def train_epoch(self, progress: Progress, stop: Callable[[], bool]) -> bool:
        """Trains to the end of the current epoch and evaluates.

        Args:
            progress: wraps the remaining batches; gets a title, the steps that are done and those of all.
            stop: asked after every step.

        Returns:
            Whether the end was reached; False when ``stop`` said so before.
        """
        steps = self.length.steps_in(self.epoch)
        keys = self._keys(steps)
        items = KeyedItems(self.data.train, self._train_transform, self.settings.seed)
        loader = load(items, keys[self.step :], self.settings.workers)
        self._model.train()
        for images, labels in progress(loader, f"epoch {self.epoch + 1}", self.step, steps):
            self._train_step(images, labels)
            self.step += 1
            if stop() and self.step < steps:
                return False
        self.ranks.share_buffers(self._model)
        accuracy, diagnostics = self.evaluation(self._model)
        row = {"epoch": self.epoch + 1, "loss": self._loss_sum.item() / steps, **accuracy}
        self.history.epochs.append(row)
        if diagnostics:
            row = {"epoch": self.epoch + 1, **diagnostics}
            self.history.diagnostics.setdefault("embeddings", []).append(row)
        self._loss_sum.zero_()
        self.epoch, self.step = self.epoch + 1, 0
        return True

    def _keys(self, steps: int) -> list[list[Key]]:
        """This rank's images of every step of the epoch."""
        return [self._keys_of(self.epoch, step, self.ranks.rank) for step in range(steps)]

    def _keys_of(self, epoch: int, step: int, rank: int) -> list[Key]:
        """A rank's images of a step."""
        world_size = self.ranks.world_size
        first = rank * (self.settings.batch_size // world_size)
        share = self.batches.epoch(epoch)[step].chunk(world_size)[rank].tolist()
        return [(epoch, step, first + place, position) for place, position in enumerate(share)]

    def _train_step(self, images: Tensor, labels: Tensor) -> None:
        settings, ranks = self.settings, self.ranks
        alone = self.epoch < self.length.warmup_epochs
        optimizer = self._warmup_optimizer if alone else self._optimizer
        loss_fn = self._ranked_warmup_loss if alone else self._ranked_loss
        assert optimizer is not None, "there are new layers, or no epochs of them alone"
        torch.manual_seed(seed_of_step(settings, self.epoch, self.step, ranks.rank))
        global_step = self.epoch * self.length.steps_per_epoch + self.step
        rate = settings.warmup_learning_rate
        if not alone:
            main_step = global_step - self.length.warmup_epochs * self.length.steps_per_epoch
            rate = learning_rate(settings, self.length, main_step)
            self._fill_memory()
        for group in optimizer.param_groups:
            group["lr"] = rate

        images = images.to(ranks.device, non_blocking=True)
        labels = labels.to(ranks.device, non_blocking=True)
        for parameter in self._model.parameters():
            parameter.grad = None
        for parameter in loss_fn.parameters():
            parameter.grad = None
        with ranks.autocast(settings.mixed_precision):
            embeddings = self._ranked_model(images)
        with nullcontext() if alone else self._diagnostics.watch(global_step):
            loss = loss_fn(embeddings, labels)
        if settings.loss_per_anchor:
            loss = loss / settings.batch_size
        self._scaler.scale(loss).backward()
        self._scaler.unscale_(optimizer)
        clip_gradient(optimizer, settings.clip_gradient)
        self._scaler.step(optimizer)
        self._scaler.update()

        self._loss_sum += loss.detach()
        if global_step % settings.log_every == 0:
            self.history.steps.append({"step": global_step, "loss": loss.item(), "learning_rate": rate})
        self._diagnostics.update(global_step, self.history.diagnostics)

    @torch.no_grad()
    def _fill_memory(self) -> None:
        """Embeds random training images when the memory's warm-up is over (XBM §3.3).

        In training mode and augmented, as the rows that replace them will be; whole batches of them.
        """
        settings, ranks = self.settings, self.ranks
        if not (settings.fill_memory and has_memory(settings)):
            return
        memory: Any = self._loss
        if memory.num_calls != settings.memory_warmup:
            return
        order = torch.randperm(len(self.data.train), generator=generator_for(settings.seed, "fill"))
        chosen = order[: memory.memory_size // settings.batch_size * settings.batch_size]
        keys = [
            [(-1, 0, 0, position) for position in batch.chunk(ranks.world_size)[ranks.rank].tolist()]
            for batch in chosen.split(settings.batch_size)
        ]
        items = KeyedItems(self.data.train, self._train_transform, settings.seed)
        for images, labels in load(items, keys, settings.workers):
            with ranks.autocast(settings.mixed_precision):
                embeddings = self._model(images.to(ranks.device))
            memory.fill_memory(embeddings, labels.to(ranks.device))
        self._diagnostics.forget_rows()

    def model_state(self) -> dict[str, Tensor]:
        """What the evaluation of the current epoch depends on."""
        return self._model.state_dict()

    def evaluate(self, model_state: dict[str, Tensor], *, nmi: bool) -> dict[str, float]:
        """The accuracy of the model of another epoch; on the first rank."""
        self._model.load_state_dict(model_state)
        return self.evaluation(self._model, nmi=nmi).accuracy

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on from here, bit for bit."""
        warmup = self._warmup_optimizer
        return {
            "epoch": self.epoch,
            "step": self.step,
            "model": self._model.state_dict(),
            "loss_fn": loss_state(self._loss),
            "warmup_loss_fn": loss_state(self._warmup_loss),
            "warmup_optimizer": None if warmup is None else warmup.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "loss_sum": self._loss_sum,
            "diagnostics": self._diagnostics.state_dict(),
            "history": vars(self.history),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.step = state["epoch"], state["step"]
        self._model.load_state_dict(state["model"])
        restore_loss(self._loss, state["loss_fn"])
        restore_loss(self._warmup_loss, state["warmup_loss_fn"])
        if self._warmup_optimizer is not None:
            self._warmup_optimizer.load_state_dict(state["warmup_optimizer"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        self._loss_sum.copy_(state["loss_sum"])
        self._diagnostics.load_state_dict(state["diagnostics"])
        self.history = History(**copy.deepcopy(state["history"]))
