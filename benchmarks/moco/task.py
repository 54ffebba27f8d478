"""Momentum Contrast with the queue of a method."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import groupby

import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor, nn

from benchmarks.engine.accuracy import embed
from benchmarks.engine.diagnostics import Diagnostics, Measured, embedding_diagnostics
from benchmarks.engine.history import Row
from benchmarks.engine.methods import MemorySetup, build_loss
from benchmarks.engine.step import Step
from benchmarks.engine.task import Evaluated, Task
from benchmarks.moco.data import Labelled, MoCoData, epoch_batches
from benchmarks.moco.encoders import Encoders
from benchmarks.moco.knn import knn_accuracy
from benchmarks.moco.settings import Settings

_LOG_EVERY = 20  # steps
_PROBE_SIZE = 64


def build_queue(method: str, settings: Settings) -> nn.Module:
    """Returns InfoNCE between queries and a queue of keys.

    With one positive per query SupConLoss is InfoNCE, and so is PML's NTXentLoss of the notebook. That
    one writes out all positives times all negatives, 128 by 128 · 4,095 numbers with 128 queries and a queue
    of 4,096, several times over 268 MB each; SupConLoss a matrix of 128 by 4,096.
    """
    loss = SupConLoss(settings.temperature, reducer=MeanReducer())
    setup = MemorySetup(settings.embedding_size, settings.queue)
    # The option has no effect, and stands for our class, whose state_dict is whole.
    return build_loss("xbm" if method == "moco" else method, setup, loss, warmup=0)


class MoCoTask(Task):
    """The encoders and SGD, with the queue of a method."""

    evaluates_untrained = True
    log_every = _LOG_EVERY

    def __init__(self, settings: Settings, data: MoCoData, method: str) -> None:
        self.settings, self.data, self.device = settings, data, torch.device(settings.device)
        self.encoders = Encoders(settings).to(self.device)
        self.loss_fn = build_queue(method, settings).to(self.device)
        self.optimizer = torch.optim.SGD(
            self.encoders.query.parameters(),
            settings.learning_rate,
            settings.sgd_momentum,
            weight_decay=settings.weight_decay,
        )
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, settings.epochs)
        names = ("encoders", "optimizer", "scheduler", "loss_fn")
        self.parts = {name: getattr(self, name) for name in names}
        self.rows_per_step = settings.batch_size
        self.steps_per_epoch = len(data.train_labels) // settings.batch_size
        self.measured = Measured(settings.diagnostics_every)

    @cached_property
    def _probe(self) -> Tensor:
        return next(iter(self.data.queries))[0][:_PROBE_SIZE].to(self.device)

    def batches(self, epoch: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        return self._pairs(epoch, range(first, self.steps_per_epoch))

    def train_step(
        self, batch: tuple[Tensor, Tensor], step: Step, diagnostics: Diagnostics
    ) -> dict[str, Tensor]:
        queries, keys = batch
        size, seed = len(queries), self.settings.seed
        embeddings = torch.cat(self.encoders(queries, keys, seed, step.total, "shuffle"))
        # Every image of every step is a class of its own, so no key in the queue passes for a positive.
        labels = torch.arange(step.total * size, (step.total + 1) * size, device=self.device).repeat(2)
        is_key = torch.arange(2 * size, device=self.device) >= size
        with diagnostics.watch(step):
            loss = self.loss_fn(embeddings, labels, enqueue_mask=is_key)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach()}

    def end_epoch(self) -> None:
        self.scheduler.step()

    def evaluate(self, logged: list[Row]) -> Evaluated:
        settings, data = self.settings, self.data
        gallery = None if data.gallery is None else self._embed(data.gallery)
        queries = self._embed(data.queries)
        accuracy = knn_accuracy(*queries, gallery, settings.knn_k, settings.knn_temperature)
        return Evaluated(accuracy, embedding_diagnostics(*queries) if self.measured.every else {})

    def embed_probe(self) -> Tensor:
        return embed(self.encoders.query, self._probe)

    def embed_steps(self, steps: list[int]) -> Tensor:
        """Returns the keys of earlier steps as the key encoder as it is would make them."""
        embeddings, size = [], self.steps_per_epoch
        for epoch, epoch_steps in groupby(steps, lambda step: step // size):
            numbers = list(epoch_steps)
            pairs = self._pairs(epoch, [step % size for step in numbers])
            for step, (_, keys) in zip(numbers, pairs, strict=True):
                embeddings.append(self.encoders.embed_again(keys, self.settings.seed, step, "shuffle"))
        return torch.cat(embeddings)

    def _pairs(self, epoch: int, steps: range | list[int]) -> Iterator[tuple[Tensor, Tensor]]:
        settings = self.settings
        batches = epoch_batches(len(self.data.train_labels), settings.batch_size, settings.seed, epoch)
        return self.data.pairs({step: batches[step] for step in steps}, epoch)

    def _embed(self, labelled: Labelled) -> tuple[Tensor, Tensor]:
        parts = [
            (embed(self.encoders.query, images.to(self.device)), labels.to(self.device))
            for images, labels in labelled
        ]
        embeddings, labels = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return embeddings, labels
