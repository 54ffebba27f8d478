"""The loss of every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytorch_metric_learning.utils.common_functions import TorchInitWrapper
from torch import Tensor, nn

from benchmarks.papers.pml_parts import make_loss, make_miner
from benchmarks.papers.settings import Settings
from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper
from pml_xbn.losses import (
    AdaptiveCrossBatchMemory,
    BatchLoss,
    SampledNormalizedSoftmaxLoss,
    StopGradientSoftmaxLoss,
)


@dataclass(frozen=True)
class LossSetup:
    """What losses need to know of the task.

    Attributes:
        num_classes: classes of the training set.
        memory_size: rows in memory.
        steps_per_epoch: forward calls per epoch.
        superclasses: (num_classes,) label -> superclass, or None.
        world_size: number of ranks.
    """

    num_classes: int
    memory_size: int
    steps_per_epoch: int
    superclasses: Tensor | None
    world_size: int


# The class of every method with a memory, and what it gets beside what all get.
_MEMORIES: dict[
    str, tuple[type[AdaptiveCrossBatchMemory], Callable[[Settings, LossSetup], dict[str, Any]]]
] = {
    "xbm": (AdaptiveCrossBatchMemory, lambda settings, setup: {}),
    "xbm-star": (AdaptiveCrossBatchMemory, lambda settings, setup: {}),
    "xbn": (XBNWrapper, lambda settings, setup: {}),
    "ema": (XBNWrapper, lambda settings, setup: {"momentum": settings.momentum}),
    "centre": (XBNWrapper, lambda settings, setup: {"match_std": False}),
    "unit-norm": (XBNWrapper, lambda settings, setup: {"normalize_memory": True}),
    "delayed": (XBNWrapper, lambda settings, setup: {"delay": settings.delay * setup.steps_per_epoch}),
    "axbn": (
        AXBNWrapper,
        lambda settings, setup: {
            "process_noise": settings.process_noise,
            "measurement_noise": settings.measurement_noise,
            "initial_variance": settings.initial_variance,
            "gain_update_interval": settings.gain_update_interval,
        },
    ),
    "per-class": (PerClassXBN, lambda settings, setup: _lambdas(settings)),
    "super-class": (
        SuperClassXBN,
        lambda settings, setup: {**_lambdas(settings), "superclasses": _superclasses(settings, setup)},
    ),
}


def build_loss(settings: Settings, setup: LossSetup) -> nn.Module:
    """The method's loss, which takes (embeddings, labels).

    Raises:
        ValueError: settings that the loss refuses.
    """
    if settings.method == "norm-softmax":
        return SampledNormalizedSoftmaxLoss(
            setup.num_classes, settings.embedding_size, settings.temperature, settings.class_ratio
        )
    if settings.method == "sgsl":
        return StopGradientSoftmaxLoss(
            setup.num_classes,
            settings.embedding_size,
            settings.gamma,
            settings.sgsl_start,
            # The paper defers to the code of Boudiaf et al. (2020), which smooths towards the other classes,
            # where torch takes all, and starts from class weights of zero.
            settings.label_smoothing * setup.num_classes / (setup.num_classes - 1),
            weight_init_func=TorchInitWrapper(nn.init.zeros_),
        )
    if settings.method == "no-xbm":
        return build_batch_loss(settings, setup)
    cls, specific = _MEMORIES[settings.method]
    return cls(
        _pml_loss(settings, setup),
        settings.embedding_size,
        setup.memory_size,
        make_miner(settings.miner, settings.miner_options),
        warmup=settings.memory_warmup,
        batch_loss_weight=_batch_loss_weight(settings),
        gather_distributed=setup.world_size > 1,
        **specific(settings, setup),
    )


def build_batch_loss(settings: Settings, setup: LossSetup) -> nn.Module:
    """The loss without memory: that of no-xbm, and of all memories in the epochs of the new layers alone."""
    return BatchLoss(
        _pml_loss(settings, setup),
        make_miner(settings.miner, settings.miner_options),
        gather_distributed=setup.world_size > 1,
    )


def has_memory(settings: Settings) -> bool:
    return settings.method in _MEMORIES


def _pml_loss(settings: Settings, setup: LossSetup) -> nn.Module:
    return make_loss(
        settings.loss,
        settings.loss_options,
        num_classes=setup.num_classes,
        embedding_size=settings.embedding_size,
    )


def _batch_loss_weight(settings: Settings) -> float:
    is_star = settings.method == "xbm-star"
    return settings.batch_loss_weight or (1.0 if is_star else 0.0)


def _lambdas(settings: Settings) -> dict[str, float]:
    return {"mean_lambda": settings.mean_lambda, "std_lambda": settings.std_lambda}


def _superclasses(settings: Settings, setup: LossSetup) -> Tensor:
    if setup.superclasses is None:
        raise ValueError(
            f"{settings.dataset} has no superclasses, which --method super-class needs; choose a data set "
            "that has (glyphs, sop, in-shop, deep-fashion2, cifar100) or another method"
        )
    return setup.superclasses
