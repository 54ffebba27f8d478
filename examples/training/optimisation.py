"""Optimizers and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .length import Length
from .settings import Settings


def build_warmup_optimizer(settings: Settings, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """SGD on the new layers alone."""
    return torch.optim.SGD(parameters, lr=settings.warmup_learning_rate, momentum=settings.sgd_momentum)


def build_optimizer(settings: Settings, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The optimizer of all layers."""
    known: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, **known)
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, **known)
    return torch.optim.SGD(parameters, momentum=settings.sgd_momentum, **known)


def learning_rate(settings: Settings, length: Length, step: int) -> float:
    """The learning rate of all layers in an iteration, counted from 0 where their training begins.

    A function, not one of torch's schedulers, which warn where float16 makes the scaler skip a step.
    """
    factor = 1.0
    if settings.schedule == "cosine":
        factor = 0.5 * (1 + math.cos(math.pi * step / length.main_steps))
    elif settings.schedule == "step" and settings.decay_at is not None:
        factor = settings.decay if step >= settings.decay_at else 1.0
    elif settings.schedule == "step":
        factor = settings.decay ** (step // length.steps_per_epoch // settings.decay_every)
    return settings.learning_rate * factor


def gradient_scaler(enabled: bool) -> Any:
    """torch's scaler for float16, which does nothing where it is not enabled."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # torch before 2.3


def clip_gradient(optimizer: Optimizer, limit: float) -> None:
    """Shortens the gradient of the optimizer's parameters to norm ``limit``; 0 leaves it."""
    if limit:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(parameters, limit)
