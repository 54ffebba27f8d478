"""The demo's task as the study runs it."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory, NormalizedSoftmaxLoss
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim.lr_scheduler import MultiStepLR

from benchmarks.demo.task import GlyphsData, GlyphsTask
from benchmarks.engine.accuracy import embed
from benchmarks.engine.diagnostics import Diagnostics, Measured, StoredBatch, embed_without_trace
from benchmarks.engine.step import Step
from benchmarks.study.cases import DECAY


class StudyTask(GlyphsTask):
    """The demo's task, which may re-embed the memory every so many steps; its rate falls at milestones."""

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

    def train_step(
        self, batch: tuple[Tensor, Tensor], step: Step, diagnostics: Diagnostics
    ) -> dict[str, Tensor]:
        if self.refresh_every and step.total % self.refresh_every == 0:
            self._refresh(self.stale(diagnostics.stored_batches(), step.total))
        return super().train_step(batch, step, diagnostics)

    def add_proxies(self) -> None:
        """Adds a softmax over the classes to the loss, whose proxies begin at the classes' means."""
        train, rate = self.data.train, self.optimizer.param_groups[0]["lr"]
        means = torch.zeros(self.data.settings.embedding_size, len(train.superclasses))
        means.index_add_(1, train.labels, embed(self.model, train.images.float() / 255).T)
        self.proxies = NormalizedSoftmaxLoss(means.shape[1], len(means))
        self.proxies.W.data = normalize(means, dim=0)
        self.optimizer.add_param_group({"params": self.proxies.parameters(), "lr": rate})
        self.parts["proxies"] = self.proxies

    def batch_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss = super().batch_loss(embeddings, labels)
        return loss if self.proxies is None else loss + self.proxies(embeddings, labels)

    def stale(self, stored: list[StoredBatch], now: int) -> list[StoredBatch]:
        """Returns the batches that are to be embedded again before the step with the number ``now``."""
        return stored

    def _refresh(self, batches: list[StoredBatch]) -> None:
        """Embeds rows as they were stored, in training mode and in the same batches, as far as there."""
        memory = self.loss_fn
        assert isinstance(memory, CrossBatchMemory)
        rows = memory.embedding_memory
        for step, places, batch_places in batches:
            images = self.data.images(*divmod(step, self.steps_per_epoch))[batch_places]
            rows[places] = embed_without_trace(self.model, images)
        memory.embedding_memory = rows
