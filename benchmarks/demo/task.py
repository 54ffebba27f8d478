"""Retrieval on Glyphs, trained by one method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, StepLR

from benchmarks.demo.settings import Settings
from benchmarks.engine.accuracy import embed, retrieval_accuracy
from benchmarks.engine.batches import EpochBatches
from benchmarks.engine.diagnostics import Diagnostics, Measured, embed_without_trace, embedding_diagnostics
from benchmarks.engine.distortion import distort
from benchmarks.engine.glyph_net import GlyphNet
from benchmarks.engine.glyphs import load_glyphs
from benchmarks.engine.history import Row
from benchmarks.engine.labelled_images import LabelledImages
from benchmarks.engine.methods import MemorySetup, build_loss
from benchmarks.engine.randomness import generator_for, seed_for
from benchmarks.engine.step import Step
from benchmarks.engine.task import Evaluated, Task
from pml_xbn.diagnostics import feature_drift

_PROBE_SIZE = 64


class GlyphsData:
    """Images, labels and batches, shared by all runs of a comparison."""

    def __init__(self, settings: Settings, device: torch.device | None = None) -> None:
        self.settings = settings
        self.device = torch.device(settings.device) if device is None else device
        self.train, self.test = self._halves()
        self.batches = EpochBatches(
            self.train.labels.cpu(), settings.batch_size, settings.images_per_class, settings.seed
        )
        size = len(self.train.images)
        probe = torch.randperm(size, generator=generator_for("probe"))[:_PROBE_SIZE]
        self.probe = self.distorted(probe.to(self.device), generator_for("probe distortion"))
        self.memory_setup = MemorySetup(
            embedding_size=settings.embedding_size,
            memory_size=max(settings.batch_size, round(settings.memory_ratio * size)),
            steps_per_epoch=len(self.batches),
            superclasses=self.train.superclasses,
        )

    def _halves(self) -> tuple[LabelledImages, LabelledImages]:
        """Returns the training images as they are, and the test images, distorted."""
        classes, device = self.settings.classes, self.device
        test = load_glyphs("test", classes, device, self.settings.distortion)
        return load_glyphs("train", classes, device), test

    def images(self, epoch: int, step: int) -> Tensor:
        """Returns the images of a batch under the distortion of their step."""
        batch = self.batches.epoch(epoch)[step].to(self.device)
        return self.distorted(batch, generator_for(self.settings.seed, epoch, step))

    def distorted(self, places: Tensor, generator: torch.Generator) -> Tensor:
        """Returns training images as a step sees them."""
        return distort(self.train.images[places], generator, self.settings.distortion)

    def network(self) -> nn.Module:
        """Returns the network before training."""
        _, channels, side, _ = self.train.images.shape
        return GlyphNet(self.settings.embedding_size, self.settings.norm, channels, side)

    def loss_and_miner(self) -> tuple[nn.Module, nn.Module | None]:
        """Returns loss and miner of a task that is given none."""
        return SupConLoss(temperature=0.1), PairMarginMiner(pos_margin=0.2, neg_margin=0.8)


class GlyphsTask(Task):
    """The small network and AdamW, with the loss of a method; without a loss, with that of the data."""

    def __init__(
        self,
        data: GlyphsData,
        method: str,
        loss: nn.Module | None = None,
        miner: nn.Module | None = None,
        **options: Any,
    ) -> None:
        settings = data.settings
        self.data, self.device = data, data.device
        torch.manual_seed(seed_for(settings.seed, "weights"))
        self.model = data.network().to(self.device).train()
        if loss is None:
            loss, miner = data.loss_and_miner()
        self.loss_fn = build_loss(method, data.memory_setup, loss, miner, **options).to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.scheduler: LRScheduler = StepLR(self.optimizer, 2, settings.decay)
        names = ("model", "optimizer", "scheduler", "loss_fn")
        self.parts = {name: getattr(self, name) for name in names}
        self.steps_per_epoch, self.rows_per_step = len(data.batches), settings.batch_size
        self.log_every, self.measured = settings.drift_every, Measured(settings.diagnostics_every)

    def batches(self, epoch: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(first, self.steps_per_epoch):
            batch = self.data.batches.epoch(epoch)[step].to(self.device)
            yield self.data.images(epoch, step), self.data.train.labels[batch]

    def train_step(
        self, batch: tuple[Tensor, Tensor], step: Step, diagnostics: Diagnostics
    ) -> dict[str, Tensor]:
        images, labels = batch
        before = self.embed_probe() if step.is_logged else None
        self.optimizer.zero_grad()
        loss = self.compute_gradients(images, labels, step, diagnostics)
        self.optimizer.step()
        if before is None:
            return {"loss": loss}
        return {"loss": loss, "drift": feature_drift(self.embed_probe(), before).mean}

    def compute_gradients(
        self, images: Tensor, labels: Tensor, step: Step, diagnostics: Diagnostics
    ) -> Tensor:
        """Adds the gradients of a batch to those of the parameters; returns its loss without a graph."""
        with diagnostics.watch(step):
            loss = self.batch_loss(self.model(images), labels)
        loss.backward()
        return loss.detach()

    def batch_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of a batch."""
        return self.loss_fn(embeddings, labels)

    def end_epoch(self) -> None:
        self.scheduler.step()

    def evaluate(self, logged: list[Row]) -> Evaluated:
        test, embeddings = self.data.test, embed(self.model, self.data.test.images)
        accuracy = retrieval_accuracy(embeddings, test.labels)
        means = {name: sum(row[name] for row in logged) / len(logged) for name in ("loss", "drift")}
        numbers = (
            embedding_diagnostics(embeddings, test.labels, test.superclasses) if self.measured.every else {}
        )
        return Evaluated({**accuracy, **means}, numbers)

    def embed_probe(self) -> Tensor:
        return embed(self.model, self.data.probe)

    def embed_steps(self, steps: list[int]) -> Tensor:
        places = [divmod(step, self.steps_per_epoch) for step in steps]
        return torch.cat([embed_without_trace(self.model, self.data.images(*place)) for place in places])
