"""Trains one method; the whole state can be saved and restored between any two epochs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from benchmarks.demo.evaluation import embed
from benchmarks.engine.checkpoint import loss_state, restore_loss
from benchmarks.engine.embedding_diagnostics import embedding_diagnostics
from benchmarks.engine.run_diagnostics import RunDiagnostics, Tables
from benchmarks.moco.data import Labelled, MoCoData, epoch_batches
from benchmarks.moco.encoders import Encoders
from benchmarks.moco.knn import knn_accuracy
from benchmarks.moco.methods import build_loss
from benchmarks.moco.settings import Settings

_LOG_EVERY = 20  # steps
_PROBE_SIZE = 64

Pairs = Iterable[tuple[Tensor, Tensor]]


@dataclass
class History:
    """What a run has measured so far.

    Attributes:
        epochs: one row per epoch, and one before the first: epoch, weighted_knn, recall_at_1.
        steps: every so many steps, counted over all epochs: step, loss.
        diagnostics: what `RunDiagnostics` measured, drift of the query encoder, rows by table; and per epoch
            the table embeddings.
        step_times: seconds of every training step, but for loading and augmentation, with its diagnostics
            if it had any.
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)
    diagnostics: Tables = field(default_factory=dict)
    step_times: list[float] = field(default_factory=list)


class Run:
    """The training of one method.

    Args:
        settings: what the result depends on.
        data: the data set that they name.
        method: a key of `METHODS`.
        device: where training takes place.
    """

    def __init__(self, settings: Settings, data: MoCoData, method: str, device: torch.device) -> None:
        self.settings, self.data, self.device = settings, data, device
        self.encoders = Encoders(settings).to(device)
        self.loss_fn = build_loss(method, settings).to(device)
        self.optimizer = torch.optim.SGD(
            self.encoders.query.parameters(),
            settings.learning_rate,
            settings.sgd_momentum,
            weight_decay=settings.weight_decay,
        )
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, settings.epochs)
        self.epoch = 0
        self.history = History()
        self._diagnostics = RunDiagnostics(
            self.loss_fn,
            settings.diagnostics_every,
            settings.batch_size,
            lambda: embed(self.encoders.query, self._probe),
            self._embed_steps,
        )

    @cached_property
    def _probe(self) -> Tensor:
        return next(iter(self.data.queries.images))[:_PROBE_SIZE]

    @property
    def steps_per_epoch(self) -> int:
        return len(self.data.train_labels) // self.settings.batch_size

    def evaluate(self) -> None:
        """Adds a row of accuracy, and of how the embeddings lie, to the history."""
        settings, data = self.settings, self.data
        gallery = None if data.gallery is None else self._embed(data.gallery)
        queries = self._embed(data.queries)
        accuracy = knn_accuracy(*queries, gallery, settings.knn_k, settings.knn_temperature)
        self.history.epochs.append({"epoch": self.epoch, **accuracy})
        if settings.diagnostics_every:
            row = {"epoch": self.epoch, **embedding_diagnostics(*queries)}
            self.history.diagnostics.setdefault("embeddings", []).append(row)

    def train_epoch(self, progress: Callable[[Pairs], Pairs]) -> None:
        """Trains for an epoch and evaluates.

        Args:
            progress: wraps the iteration over the batches, a progress bar for example.
        """
        batches = self._batches(self.epoch)
        for step, (queries, keys) in enumerate(progress(self.data.pairs(batches, self.epoch))):
            global_step = self.epoch * len(batches) + step
            start = self._now()
            loss = self._train_step(queries, keys, global_step)
            self.history.step_times.append(self._now() - start)
            if step % _LOG_EVERY == 0:
                self.history.steps.append({"step": global_step, "loss": loss.item()})
            self._diagnostics.update(global_step, self.history.diagnostics)
        self.scheduler.step()
        self.epoch += 1
        self.evaluate()

    def _train_step(self, queries: Tensor, keys: Tensor, step: int) -> Tensor:
        size = len(queries)
        embeddings = torch.cat(self.encoders(queries, keys, self.settings.seed, step, "shuffle"))
        # Every image of every step is a class of its own, so no key in the queue passes for a positive.
        labels = torch.arange(step * size, (step + 1) * size, device=self.device).repeat(2)
        is_key = torch.arange(2 * size, device=self.device) >= size
        with self._diagnostics.watch(step):
            loss: Tensor = self.loss_fn(embeddings, labels, enqueue_mask=is_key)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _embed_steps(self, steps: list[int]) -> Tensor:
        """The keys of earlier steps as the key encoder as it is would make them."""
        embeddings = []
        for epoch, of_epoch in groupby(steps, lambda step: step // self.steps_per_epoch):
            numbers = list(of_epoch)
            places = [step % self.steps_per_epoch for step in numbers]
            pairs = self.data.pairs(self._batches(epoch), epoch, places)
            for step, (_, keys) in zip(numbers, pairs, strict=True):
                embeddings.append(self.encoders.embed_again(keys, self.settings.seed, step, "shuffle"))
        return torch.cat(embeddings)

    def _batches(self, epoch: int) -> Tensor:
        settings = self.settings
        return epoch_batches(len(self.data.train_labels), settings.batch_size, settings.seed, epoch)

    def _embed(self, labelled: Labelled) -> tuple[Tensor, Tensor]:
        embeddings = [embed(self.encoders.query, images) for images in labelled.images]
        return torch.cat(embeddings), labelled.labels

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on from here, bit for bit."""
        return {
            "epoch": self.epoch,
            "encoders": self.encoders.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "loss_fn": loss_state(self.loss_fn),
            "diagnostics": self._diagnostics.state_dict(),
            "history": vars(self.history),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.encoders.load_state_dict(state["encoders"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        restore_loss(self.loss_fn, state["loss_fn"])
        self._diagnostics.load_state_dict(state["diagnostics"])
        self.history = History(**copy.deepcopy(state["history"]))
