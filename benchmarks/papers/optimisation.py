"""How long a run is, its optimizers and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.engine.trial import at_most
from benchmarks.papers.settings import Settings


@dataclass(frozen=True)
class Length:
    """An epoch is a pass over the training set; at first the new layers train alone, then all."""

    steps_per_epoch: int
    warmup_epochs: int
    main_steps: int

    @property
    def epochs(self) -> int:
        return self.warmup_epochs + math.ceil(self.main_steps / self.steps_per_epoch)

    @property
    def steps(self) -> int:
        return self.warmup_epochs * self.steps_per_epoch + self.main_steps

    def steps_in(self, epoch: int) -> int:
        """Iterations of an epoch, counted from 0; the last one may be cut short."""
        return min(self.steps_per_epoch, self.steps - epoch * self.steps_per_epoch)


def run_length(settings: Settings, batches_per_epoch: int) -> Length:
    steps = at_most(min(batches_per_epoch, settings.steps_per_epoch or batches_per_epoch))
    main_steps = at_most(settings.iterations or settings.epochs * steps)
    return Length(steps, at_most(settings.warmup_epochs), main_steps)


def build_optimizer(name: str, settings: Settings, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Returns an optimizer, whose learning rate every step sets."""
    groups, momentum = _groups(settings, parameters), settings.sgd_momentum
    if name == "sgd":
        # torch refuses Nesterov's method where there is no momentum for it.
        nesterov = settings.nesterov and momentum > 0
        return torch.optim.SGD(groups, settings.learning_rate, momentum, nesterov=nesterov)
    return (torch.optim.AdamW if name == "adamw" else torch.optim.Adam)(groups)


def _groups(settings: Settings, parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Returns parameter groups; vectors and scalars have no weight decay unless that is set."""
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in parameters:
        (decayed if parameter.ndim > 1 or settings.decay_vectors else others).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def learning_rate(settings: Settings, length: Length, step: int) -> float:
    """Returns the learning rate of all layers in an iteration, counted from 0 where their training begins.

    A function, not one of torch's schedulers, which warn where float16 makes the scaler skip a step.
    """
    factor = 1.0
    if settings.schedule == "cosine":
        factor = 0.5 * (1 + math.cos(math.pi * step / length.main_steps))
    elif settings.schedule == "step" and settings.decay_at is not None:
        factor = settings.decay if step >= settings.decay_at else 1.0
    elif settings.schedule == "step":
        factor = settings.decay ** (step // length.steps_per_epoch // settings.decay_every)
    if settings.warmup_steps:
        factor = min(factor, (step + 1) / settings.warmup_steps)
    return settings.learning_rate * factor


def gradient_scaler(enabled: bool) -> Any:
    """Returns torch's scaler for float16, which does nothing where it is not enabled."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # torch before 2.3


def clip_gradient(optimizer: Optimizer, limit: float) -> None:
    """Shortens the gradient of the optimizer's parameters to norm ``limit``; 0 leaves it."""
    if limit:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(parameters, limit)
