"""What else is proposed against stale rows, as tasks of the study."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.demo.task import GlyphsData
from benchmarks.engine.diagnostics import Diagnostics, StoredBatch, embed_without_trace
from benchmarks.engine.modes import evaluation_mode
from benchmarks.engine.randomness import generator_for
from benchmarks.engine.step import Step
from benchmarks.hooks.learned_correction import Kind, LearnedCorrection
from benchmarks.hooks.negatives_only import take_negatives_only
from benchmarks.study.task import StudyTask


class WarmedUp(StudyTask):
    """The memory is filled after a thousand steps or an epoch without it (Cross-Batch Memory, §3.3)."""

    def __init__(
        self, data: GlyphsData, method: str, *args: Any, is_short: bool = False, steps: int = 1000
    ) -> None:
        self.warmup = len(data.batches) if is_short else steps
        super().__init__(data, method, *args, warmup=self.warmup)

    def train_step(
        self, batch: tuple[Tensor, Tensor], step: Step, diagnostics: Diagnostics
    ) -> dict[str, Tensor]:
        if step.total == self.warmup:
            self._fill_memory()
            diagnostics.forget_rows()
        return super().train_step(batch, step, diagnostics)

    @torch.no_grad()
    def _fill_memory(self) -> None:
        """Stores random training images in batches, distorted and in training mode as those that follow."""
        memory: Any = self.loss_fn
        train, settings = self.data.train, self.data.settings
        generator = generator_for(settings.seed, "fill")
        order = torch.randperm(len(train.images), generator=generator)[: memory.memory_size]
        for part in order.split(settings.batch_size):
            memory.fill_memory(self.model(self.data.distorted(part, generator)), train.labels[part])


class NegativesOnly(StudyTask):
    """The memory is compared with as negatives alone: positives come from the batch."""

    def __init__(self, data: GlyphsData, method: str, *args: Any) -> None:
        loss, miner = data.loss_and_miner()
        super().__init__(data, method, *args, loss=take_negatives_only(loss, miner), miner=miner)


class OtherRowsStored(StudyTask):
    """The memory stores rows of another pass through a batch than the one that has gradients."""

    def __init__(self, data: GlyphsData, method: str, *args: Any) -> None:
        super().__init__(data, method, *args, warmup=0)  # PML's memory in less time

    def train_step(
        self, batch: tuple[Tensor, Tensor], step: Step, diagnostics: Diagnostics
    ) -> dict[str, Tensor]:
        with torch.no_grad():
            self._keys = self.rows_to_store(batch[0])
        return super().train_step(batch, step, diagnostics)

    def rows_to_store(self, images: Tensor) -> Tensor:
        """Returns what the memory stores of a batch."""
        raise NotImplementedError

    def batch_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        is_key = torch.arange(2 * len(labels)) >= len(labels)
        return self.loss_fn(torch.cat([embeddings, self._keys]), labels.repeat(2), enqueue_mask=is_key)


class EvaluationRows(OtherRowsStored):
    """The memory stores what the model makes of a batch in evaluation mode, by running statistics."""

    def rows_to_store(self, images: Tensor) -> Tensor:
        with evaluation_mode(self.model):
            rows: Tensor = self.model(images)
        return rows


class MomentumEncoded(OtherRowsStored):
    """The memory stores what a moving average of the model makes of a batch, as in Momentum Contrast.

    As there, the encoder of the rows is in training mode.
    """

    def __init__(self, data: GlyphsData, method: str, *args: Any, momentum: float) -> None:
        super().__init__(data, method, *args)
        self.encoder = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(momentum)).train()
        self.parts["encoder"] = self.encoder

    def train_step(
        self, batch: tuple[Tensor, Tensor], step: Step, diagnostics: Diagnostics
    ) -> dict[str, Tensor]:
        if not self.encoder.n_averaged:
            self.encoder.update_parameters(self.model)  # begins as what the run starts from
        numbers = super().train_step(batch, step, diagnostics)
        self.encoder.update_parameters(self.model)
        return numbers

    def rows_to_store(self, images: Tensor) -> Tensor:
        rows: Tensor = self.encoder(images)
        return rows


class CachedGradients(StudyTask):
    """A batch goes through the network in parts, twice, and through the loss as a whole (GradCache).

    Batch normalization that trains sees a part. Memory for activations is that of a part.
    """

    def __init__(self, data: GlyphsData, method: str, *args: Any, part_size: int) -> None:
        super().__init__(data, method, *args)
        self.part_size = part_size

    def compute_gradients(
        self, images: Tensor, labels: Tensor, step: Step, diagnostics: Diagnostics
    ) -> Tensor:
        parts = images.split(self.part_size)
        embeddings = torch.cat([embed_without_trace(self.model, part) for part in parts]).requires_grad_()
        with diagnostics.watch(step):
            loss = self.batch_loss(embeddings, labels)
        loss.backward()
        assert embeddings.grad is not None
        for part, gradient in zip(parts, embeddings.grad.split(self.part_size), strict=True):
            self.model(part).backward(gradient)
        return loss.detach()


class OldestRefreshed(StudyTask):
    """Of the stored batches, the one that was embedded the longest ago is embedded anew."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._embedded: dict[int, int] = {}  # a batch by its step -> the step at which it was last embedded

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "embedded": self._embedded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._embedded = state["embedded"]

    def stale(self, stored: list[StoredBatch], now: int) -> list[StoredBatch]:
        if not stored:
            return []
        self._embedded = {batch.step: self._embedded.get(batch.step, batch.step) for batch in stored}
        oldest = min(stored, key=lambda batch: self._embedded[batch.step])
        self._embedded[oldest.step] = now
        return [oldest]


class Corrected(StudyTask):
    """A sample's new row replaces its old one; all rows move as these have moved, if ``kind`` says how."""

    def __init__(self, data: GlyphsData, method: str, *args: Any, kind: Kind | None = None) -> None:
        super().__init__(data, method, *args, warmup=0)  # not PML's class, which has no hooks
        memory: Any = self.loss_fn
        if kind is not None:
            memory.register_memory_hook(LearnedCorrection(memory, kind))

    def train_step(
        self, batch: tuple[Tensor, Tensor], step: Step, diagnostics: Diagnostics
    ) -> dict[str, Tensor]:
        self._samples = self.data.batches.epoch(step.epoch)[step.number]
        return super().train_step(batch, step, diagnostics)

    def batch_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.loss_fn(embeddings, labels, sample_ids=self._samples)


REMEDIES: dict[str, Callable[..., StudyTask]] = {
    "batch loss": partial(StudyTask, batch_loss_weight=1.0),
    "warm-up": WarmedUp,
    "warm-up of an epoch": partial(WarmedUp, is_short=True),
    "negatives only": NegativesOnly,
    "evaluation rows": EvaluationRows,
    "cached in parts of 64": partial(CachedGradients, part_size=64),
    "momentum 0.9": partial(MomentumEncoded, momentum=0.9),
    "momentum 0.99": partial(MomentumEncoded, momentum=0.99),
    "oldest": OldestRefreshed,
    "oldest, equal time": OldestRefreshed,
    "own rows": Corrected,
    "shift": partial(Corrected, kind="shift"),
    "diagonal": partial(Corrected, kind="diagonal"),
    "low rank": partial(Corrected, kind="low rank"),
}
