"""Retrieval between images of characters and their names, trained by one method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, nn

from benchmarks.engine.accuracy import embed, retrieval_accuracy
from benchmarks.engine.batches import EpochBatches
from benchmarks.engine.diagnostics import Diagnostics, Measured, embed_without_trace
from benchmarks.engine.distortion import distort
from benchmarks.engine.glyph_net import GlyphNet
from benchmarks.engine.glyphs import load_glyphs
from benchmarks.engine.history import Row
from benchmarks.engine.randomness import generator_for, seed_for
from benchmarks.engine.task import Evaluated, Step, Task
from benchmarks.two_towers.name_net import NameNet, encode
from benchmarks.two_towers.settings import Settings
from pml_xbn import TwoTowerMemory, XBNWrapper
from pml_xbn.datasets import Glyphs
from pml_xbn.losses import AdaptiveCrossBatchMemory

_CPU = torch.device("cpu")
_LOG_EVERY = 20  # steps
_PROBE_SIZE = 64
_NEVER = 2**31  # ends a warm-up


class Pairs(NamedTuple):
    """One half of Glyphs: images (N, 1, 32, 32), their labels (N,), and names by label (C, LENGTH)."""

    images: Tensor
    labels: Tensor
    names: Tensor
    checksum: str


def load_pairs(split: str, classes: int | None) -> Pairs:
    """The training images as they are, or the test images distorted, with the names of their classes."""
    glyphs = load_glyphs(split, classes, _CPU)
    names = encode(Glyphs(split).label_names[:classes])
    return Pairs(glyphs.images, glyphs.labels, names, glyphs.checksum)


def build_loss(method: str, settings: Settings, memory_size: int, steps_per_epoch: int) -> TwoTowerMemory:
    """The loss of a method.

    Without memory it is that of a warm-up which has no end: InfoNCE within the batch, in both directions. One
    with a star has this besides.
    """
    name, _, star = method.partition("-")

    def memory() -> AdaptiveCrossBatchMemory:
        return (XBNWrapper if name == "adapted" else AdaptiveCrossBatchMemory)(
            SupConLoss(settings.temperature),
            settings.embedding_size,
            memory_size,
            warmup=_NEVER if name == "no" else settings.warmup_epochs * steps_per_epoch,
            batch_loss_weight=1.0 if star == "star" else 0.0,
        )

    return TwoTowerMemory(document_memory=memory(), query_memory=memory())


class TwoTowersTask(Task):
    """A network for images, one for names, and AdamW, with the loss of a method.

    Images are the queries, their names the documents.
    """

    loss_fn: TwoTowerMemory
    device = _CPU
    log_every = _LOG_EVERY

    def __init__(self, settings: Settings, train: Pairs, test: Pairs, method: str, seed: int) -> None:
        self.train, self.test, self.seed = train, test, seed
        torch.manual_seed(seed_for(seed, "weights"))
        self.model = nn.ModuleDict(
            {"images": GlyphNet(settings.embedding_size), "names": NameNet(settings.embedding_size)}
        )
        self.epoch_batches = EpochBatches(train.labels, settings.batch_size, 0, seed)
        self.steps_per_epoch, self.rows_per_step = len(self.epoch_batches), settings.batch_size
        memory_size = max(settings.batch_size, round(settings.memory_ratio * len(train.images)))
        self.loss_fn = build_loss(method, settings, memory_size, self.steps_per_epoch)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.learning_rate)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, settings.epochs * self.steps_per_epoch
        )
        self.parts = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "loss_fn": self.loss_fn,
        }
        self.measured, self.epochs = Measured(settings.diagnostics_every), settings.epochs

    @property
    def watched(self) -> nn.Module:
        """The memory of names."""
        return self.loss_fn.document_memory

    def batches(self, epoch: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Distorted images of every step, and their labels."""
        for step in range(first, self.steps_per_epoch):
            batch = self.epoch_batches.epoch(epoch)[step]
            yield (
                distort(self.train.images[batch], generator_for(self.seed, epoch, step)),
                self.train.labels[batch],
            )

    def train_step(
        self, batch: tuple[Tensor, Tensor], step: Step, diagnostics: Diagnostics
    ) -> dict[str, Tensor]:
        images, labels = batch
        queries, documents = self.model["images"](images), self.model["names"](self.train.names[labels])
        with diagnostics.watch(step):
            loss = self.loss_fn(queries, documents, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return {"loss": loss.detach()}

    def evaluates_after(self, epochs: int) -> bool:
        return epochs == self.epochs

    def evaluate(self, logged: list[Row]) -> Evaluated:
        """Recall@1 of the names among which an image finds its own, and of the images that a name finds."""
        test = self.test
        images, names = embed(self.model["images"], test.images), embed(self.model["names"], test.names)
        sides = (images, test.labels), (names, torch.arange(len(names)))
        forth, back = (retrieval_accuracy(*q, *g)["recall_at_1"] for q, g in (sides, sides[::-1]))
        row = {"recall_at_1": (forth + back) / 2, "image_to_name": forth, "name_to_image": back}
        return Evaluated(row, {})

    def embed_probe(self) -> Tensor:
        return embed(self.model["names"], self.train.names[:_PROBE_SIZE])

    def embed_steps(self, steps: list[int]) -> Tensor:
        """The names that earlier steps stored."""
        places = [divmod(step, self.steps_per_epoch) for step in steps]
        batches = [self.epoch_batches.epoch(epoch)[step] for epoch, step in places]
        of_batches = [self.train.names[self.train.labels[batch]] for batch in batches]
        return torch.cat([embed_without_trace(self.model["names"], names) for names in of_batches])
