"""Optimizers and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from .settings import Settings


def build_warmup_optimizer(settings: Settings, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """SGD on the new layers alone."""
    return torch.optim.SGD(parameters, lr=settings.warmup_learning_rate, momentum=settings.sgd_momentum)


def build_optimizer(settings: Settings, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The optimizer of all layers."""
    known = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, **known)
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, **known)
    return torch.optim.SGD(parameters, momentum=settings.sgd_momentum, **known)


def build_scheduler(
    settings: Settings, optimizer: Optimizer, steps_per_epoch: int, total_steps: int
) -> LambdaLR:
    """The learning rate as a function of the iteration; call ``step`` after every one."""

    def factor(step: int) -> float:
        if settings.schedule == "constant":
            return 1.0
        if settings.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * step / total_steps))
        if settings.decay_at is not None:
            return settings.decay if step >= settings.decay_at else 1.0
        return settings.decay ** (step // steps_per_epoch // settings.decay_every)

    return LambdaLR(optimizer, factor)


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
