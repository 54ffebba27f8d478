"""Retrieval between queries and documents, trained by one method."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler

from benchmarks.engine.accuracy import embed, retrieval_accuracy
from benchmarks.engine.batches import EpochBatches
from benchmarks.engine.diagnostics import Diagnostics, Measured, embed_without_trace
from benchmarks.engine.history import Row
from benchmarks.engine.randomness import generator_for, seed_for
from benchmarks.engine.step import Step
from benchmarks.engine.task import Evaluated, Task
from benchmarks.two_towers.pairs import Pairs, draw
from benchmarks.two_towers.settings import Settings
from pml_xbn import TwoTowerMemory, XBNWrapper
from pml_xbn.losses import AdaptiveCrossBatchMemory

_CPU = torch.device("cpu")
_LOG_EVERY = 20  # steps
_PROBE_SIZE = 64
_EVALUATIONS = 10
_NEVER = 2**31  # ends a warm-up


def build_loss(method: str, settings: Settings, memory_size: int, steps_per_epoch: int) -> TwoTowerMemory:
    """Returns the loss of a method.

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
    """A network for queries, one for documents, and AdamW, with the loss of a method."""

    loss_fn: TwoTowerMemory
    device = _CPU
    log_every = _LOG_EVERY

    def __init__(self, settings: Settings, train: Pairs, test: Pairs, method: str, seed: int) -> None:
        self.train, self.test, self.seed = train, test, seed
        torch.manual_seed(seed_for(seed, "weights"))
        sides = zip(("queries", "documents"), train.towers, strict=True)
        self.model = nn.ModuleDict({side: tower(settings.embedding_size) for side, tower in sides})
        labels = train.query_labels[train.pairs[:, 0]]
        self.epoch_batches = EpochBatches(labels, settings.batch_size, 0, seed)
        self.steps_per_epoch, self.rows_per_step = len(self.epoch_batches), settings.batch_size
        memory_size = max(settings.batch_size, round(settings.memory_ratio * len(labels)))
        self.loss_fn = build_loss(method, settings, memory_size, self.steps_per_epoch)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.learning_rate)
        steps = settings.epochs * self.steps_per_epoch
        self.scheduler: LRScheduler = (
            ConstantLR(self.optimizer, 1.0)
            if settings.constant_rate
            else CosineAnnealingLR(self.optimizer, steps)
        )
        names = ("model", "optimizer", "scheduler", "loss_fn")
        self.parts = {name: getattr(self, name) for name in names}
        self.measured = Measured(settings.diagnostics_every, drift_over=())
        self.evaluate_every = (
            max(1, settings.epochs // _EVALUATIONS) if settings.constant_rate else settings.epochs
        )

    @property
    def watched(self) -> nn.Module:
        """The memory of documents."""
        return self.loss_fn.document_memory

    def batches(self, epoch: int, first: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs of the queries and documents of every step, and their labels."""
        for step in range(first, self.steps_per_epoch):
            queries, documents = self._places(epoch, step)
            generator = generator_for(self.seed, epoch, step)
            yield (
                draw(self.train.queries, queries, generator),
                draw(self.train.documents, documents, generator),
                self.train.query_labels[queries],
            )

    def _places(self, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        queries, documents = self.train.pairs[self.epoch_batches.epoch(epoch)[step]].T
        return queries, documents

    def train_step(
        self, batch: tuple[Tensor, Tensor, Tensor], step: Step, diagnostics: Diagnostics
    ) -> dict[str, Tensor]:
        queries, documents, labels = batch
        embeddings = self.model["queries"](queries), self.model["documents"](documents)
        with diagnostics.watch(step):
            loss = self.loss_fn(*embeddings, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return {"loss": loss.detach()}

    def evaluate(self, logged: list[Row]) -> Evaluated:
        """Returns Recall@1 of the documents that a query finds, and of the queries that a document finds."""
        test = self.test
        queries, documents = (embed(self.model[s], getattr(test, s)) for s in ("queries", "documents"))
        sides = (queries, test.query_labels), (documents, test.document_labels)
        forth, back = (retrieval_accuracy(*q, *g)["recall_at_1"] for q, g in (sides, sides[::-1]))
        row = {"recall_at_1": (forth + back) / 2, "query_to_document": forth, "document_to_query": back}
        return Evaluated(row, {})

    def embed_probe(self) -> Tensor:
        return embed(self.model["documents"], self.train.documents[:_PROBE_SIZE])

    def embed_steps(self, steps: list[int]) -> Tensor:
        """Returns the documents that earlier steps stored."""
        places = [self._places(*divmod(step, self.steps_per_epoch))[1] for step in steps]
        inputs = [self.train.documents[rows] for rows in places]
        return torch.cat([embed_without_trace(self.model["documents"], batch) for batch in inputs])
