"""A backbone that is fine-tuned as the papers do: the new layers alone at first, then all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.engine.batches import EpochBatches
from benchmarks.engine.diagnostics import Diagnostics, Measured, embed_without_trace
from benchmarks.engine.history import Row
from benchmarks.engine.keyed_items import Key, KeyedItems, Loader, load
from benchmarks.engine.modes import evaluation_mode
from benchmarks.engine.randomness import generator_for, seed_for
from benchmarks.engine.ranks import Ranks
from benchmarks.engine.step import Step
from benchmarks.engine.task import Evaluated, Task
from benchmarks.papers.augmentation import build_transforms
from benchmarks.papers.data import TaskData
from benchmarks.papers.evaluation import Evaluation, result_row
from benchmarks.papers.in_parts import InParts
from benchmarks.papers.methods import LossSetup, build_batch_loss, build_beside, build_loss, has_memory
from benchmarks.papers.model import build_model, images_per_norm
from benchmarks.papers.optimisation import (
    build_optimizer,
    clip_gradient,
    gradient_scaler,
    learning_rate,
    run_length,
)
from benchmarks.papers.settings import Settings

_PROBE_SIZE = 64


class PapersTask(Task):
    """One method with one seed; ``images_per_norm`` are the images whose moments batch normalization uses."""

    is_timed = False

    def __init__(self, settings: Settings, data: TaskData, ranks: Ranks) -> None:
        if settings.batch_size % (ranks.world_size * settings.accumulate):
            raise ValueError(
                f"--batch-size is {settings.batch_size}; it must be a multiple of the "
                f"{ranks.world_size} ranks times the {settings.accumulate} parts of --accumulate"
            )
        self.settings, self.data, self.ranks, self.device = settings, data, ranks, ranks.device
        self._batches = EpochBatches(
            data.train.labels, settings.batch_size, settings.images_per_class, settings.seed
        )
        self.length = run_length(settings, len(self._batches))
        self.steps_per_epoch, self.rows_per_step = self.length.steps_per_epoch, settings.batch_size
        self.log_every = settings.log_every
        self.measured = Measured(settings.diagnostics_every, drift_over=(1, 10, 100, 1000))
        setup = LossSetup(
            num_classes=data.num_classes,
            embedding_size=settings.embedding_size,
            memory_size=max(settings.batch_size, round(settings.memory_ratio * len(data.train))),
            steps_per_epoch=self.steps_per_epoch,
            superclasses=data.train.superclasses,
            world_size=ranks.world_size,
        )

        torch.manual_seed(seed_for(settings.seed, "weights"))
        self.model, data_config = build_model(settings, self.length.steps * settings.accumulate)
        self.model.train()
        synchronises = settings.sync_bn and ranks.device.type == "cuda"  # PyTorch does it on GPUs alone
        self.images_per_norm = images_per_norm(settings, self.model, 1 if synchronises else ranks.world_size)
        if synchronises and ranks.world_size > 1:
            from timm.layers import convert_sync_batchnorm  # torch's drops the activation of timm's BN

            convert_sync_batchnorm(self.model)
        self.loss_fn = build_loss(settings, setup).to(ranks.device)
        self._warmup_loss = self.loss_fn
        if has_memory(settings):
            self._warmup_loss = build_batch_loss(settings, setup).to(ranks.device)
        self._beside = build_beside(settings, setup).to(ranks.device)
        self.model.to(ranks.device)
        if ranks.device.type == "cuda":
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]
        transforms = build_transforms(settings, data_config)
        self._items, self._plain_items = (
            KeyedItems(data.train, transform, settings.seed) for transform in transforms
        )
        self._loader = Loader(self._items, settings.workers)
        self.evaluation = Evaluation(settings, data, transforms[1], ranks)

        new = [*self.model.head.parameters(), *self._warmup_loss.parameters(), *self._beside.parameters()]
        if self.length.warmup_epochs and not new:
            raise ValueError(
                f"--head {settings.head} has nothing to train alone; pass --warmup-epochs 0 or another head"
            )
        everything = [p for part in (self.model, self.loss_fn, self._beside) for p in part.parameters()]
        self._warmup_optimizer = build_optimizer("sgd", settings, new) if new else None
        self._optimizer = build_optimizer(settings.optimizer, settings, everything)
        self._scaler = gradient_scaler(ranks.device.type == "cuda" and settings.mixed_precision == "fp16")
        # Gradients of frozen layers are computed in the first stage and dropped: a model that is wrapped
        # for many ranks cannot change which of its parameters have any.
        self._in_parts = InParts(self.model, settings.accumulate)
        self._ranked_model = ranks.wrap(self._in_parts)
        self._ranked_loss = ranks.wrap(self.loss_fn)
        self._ranked_warmup_loss = (
            self._ranked_loss if self._warmup_loss is self.loss_fn else ranks.wrap(self._warmup_loss)
        )
        self._ranked_beside = ranks.wrap(self._beside)
        self.parts = {
            "model": self.model,
            "loss_fn": self.loss_fn,
            "warmup_loss_fn": self._warmup_loss,
            "beside": self._beside,
            "optimizer": self._optimizer,
            "scaler": self._scaler,
        }
        if self._warmup_optimizer is not None:
            self.parts["warmup_optimizer"] = self._warmup_optimizer

    def steps_in(self, epoch: int) -> int:
        return self.length.steps_in(epoch)

    def batches(self, epoch: int, first: int) -> Iterable[tuple[Tensor, Tensor]]:
        self.model.train()
        keys = [
            [*self._batch_keys(epoch, step), *self._extra_keys(epoch, step)]
            for step in range(first, self.steps_in(epoch))
        ]
        return self._loader(keys)

    def _extra_keys(self, epoch: int, step: int) -> list[Key]:
        """Returns this rank's images of further batches that a step stores (XBM, supplement §2)."""
        settings, length = self.settings, self.length
        main_step = (epoch - length.warmup_epochs) * length.steps_per_epoch + step
        if not has_memory(settings) or main_step < settings.memory_warmup:
            return []
        # Those of epochs that the run does not get to.
        epochs = [epoch + number * length.epochs for number in range(1, settings.update_factor)]
        return [key for other in epochs for key in self._batch_keys(other, step)]

    def _samples(self, keys: Sequence[Key]) -> dict[str, Tensor]:
        """Returns the images' numbers as ``sample_ids``, if their rows are to be updated."""
        if self.settings.update == "queue" or not has_memory(self.settings):
            return {}
        return {"sample_ids": torch.tensor([key[-1] for key in keys], device=self.device)}

    def _batch_keys(self, epoch: int, step: int) -> list[Key]:
        """Returns this rank's images of a step."""
        rank, world_size = self.ranks.rank, self.ranks.world_size
        first = rank * (self.settings.batch_size // world_size)
        share = self._batches.epoch(epoch)[step].chunk(world_size)[rank].tolist()
        return [(epoch, step, first + place, position) for place, position in enumerate(share)]

    def _step_seed(self, epoch: int, step: int) -> int:
        """Returns the seed of what a step draws on this rank, such as dropout."""
        return seed_for(self.settings.seed, "step", epoch, step, self.ranks.rank)

    def train_step(
        self, batch: tuple[Tensor, Tensor], step: Step, diagnostics: Diagnostics
    ) -> dict[str, Tensor | float]:
        settings, ranks = self.settings, self.ranks
        is_warmup = step.epoch < self.length.warmup_epochs
        optimizer = self._warmup_optimizer if is_warmup else self._optimizer
        loss_fn = self._ranked_warmup_loss if is_warmup else self._ranked_loss
        assert optimizer is not None, "there are new layers, or no epochs of them alone"
        torch.manual_seed(self._step_seed(step.epoch, step.number))
        rate = settings.warmup_learning_rate
        if not is_warmup:
            main_step = step.total - self.length.warmup_epochs * self.steps_per_epoch
            rate = learning_rate(settings, self.length, main_step)
            self._fill_memory(diagnostics)
        for group in optimizer.param_groups:
            group["lr"] = rate

        images, labels = (tensor.to(ranks.device, non_blocking=True) for tensor in batch)
        keys = self._batch_keys(step.epoch, step.number)
        own, extra_keys = len(keys), self._extra_keys(step.epoch, step.number)
        for first in range(own, len(images), own):
            rows = slice(first, first + own)
            self._store(images[rows], labels[rows], extra_keys[first - own : first])
            diagnostics.forget_rows()
        images, labels = images[:own], labels[:own]
        for part in (self.model, loss_fn, self._beside):
            part.zero_grad()
        with ranks.autocast(settings.mixed_precision):
            embeddings = self._ranked_model(images)
        with nullcontext() if is_warmup else diagnostics.watch(step):
            loss = loss_fn(embeddings, labels, **({} if is_warmup else self._samples(keys)))
        if settings.loss_per_anchor:
            loss = loss / settings.batch_size
        loss = loss + settings.beside_weight * self._ranked_beside(embeddings, labels)
        self._scaler.scale(loss).backward()
        self._scaler.unscale_(optimizer)
        clip_gradient(optimizer, settings.clip_gradient)
        self._scaler.step(optimizer)
        self._scaler.update()
        return {"loss": loss.detach(), "learning_rate": rate}

    @torch.no_grad()
    def _fill_memory(self, diagnostics: Diagnostics) -> None:
        """Embeds random training images when the memory's warm-up is over (XBM §3.3).

        In training mode and augmented, as the rows that replace them will be; whole batches of them.
        """
        settings, ranks = self.settings, self.ranks
        if not (settings.fill_memory and has_memory(settings)):
            return
        memory: Any = self.loss_fn
        if memory.num_calls != settings.memory_warmup:
            return
        order = torch.randperm(len(self.data.train), generator=generator_for(settings.seed, "fill"))
        filling = order[: memory.memory_size // settings.batch_size * settings.batch_size]
        keys = [
            [(-1, 0, 0, position) for position in batch.chunk(ranks.world_size)[ranks.rank].tolist()]
            for batch in filling.split(settings.batch_size)
        ]
        for part, (images, labels) in zip(keys, load(self._items, keys, settings.workers), strict=True):
            self._store(images.to(ranks.device), labels.to(ranks.device), part)
        diagnostics.forget_rows()

    @torch.no_grad()
    def _store(self, images: Tensor, labels: Tensor, keys: Sequence[Key]) -> None:
        """Embeds images and stores them without a loss."""
        with self.ranks.autocast(self.settings.mixed_precision):
            embeddings = self._in_parts(images)
        memory: Any = self.loss_fn
        memory.fill_memory(embeddings, labels, **self._samples(keys))

    def evaluates_after(self, epochs: int) -> bool:
        return epochs % self.settings.eval_every == 0 or epochs == self.length.epochs

    def end_epoch(self) -> None:
        self.ranks.share_buffers(self.model)

    def evaluate(self, logged: list[Row]) -> Evaluated:
        """Returns the mean of the epoch's logged losses, and the accuracies."""
        accuracy, embeddings = self.evaluation(self.model)
        return Evaluated({"loss": fmean(row["loss"] for row in logged), **accuracy}, embeddings)

    def model_accuracy(self, model_state: dict[str, Tensor]) -> Row:
        """Returns the accuracy of the model of another epoch, with NMI if wished; on the first rank."""
        self.model.load_state_dict(model_state)
        return result_row(*self.evaluation(self.model, nmi=self.settings.nmi))

    @cached_property
    def _probe(self) -> Tensor:
        order = torch.randperm(len(self.data.train), generator=generator_for("probe"))
        keys = [(position,) for position in order[:_PROBE_SIZE].tolist()]
        return next(iter(load(self._plain_items, [keys], workers=0)))[0]

    @torch.no_grad()
    def embed_probe(self) -> Tensor:
        with evaluation_mode(self.model), self.ranks.autocast(self.settings.mixed_precision):
            embeddings = self.model(self._probe.to(self.ranks.device))
        return normalize(embeddings)

    def embed_steps(self, steps: list[int]) -> Tensor:
        """Returns embeddings of all ranks, each of which embeds the share that it had then."""
        settings, ranks = self.settings, self.ranks
        places = [divmod(step, self.steps_per_epoch) for step in steps]
        batches = load(self._items, [self._batch_keys(*place) for place in places], settings.workers)
        embeddings = []
        with torch.random.fork_rng([ranks.device] if ranks.device.type == "cuda" else []):
            for place, (images, _) in zip(places, batches, strict=True):
                torch.manual_seed(self._step_seed(*place))
                with ranks.autocast(settings.mixed_precision):
                    mine = embed_without_trace(self._in_parts, images.to(ranks.device))
                embeddings.append(ranks.gather(mine))
        return torch.cat(embeddings)
