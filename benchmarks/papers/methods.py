"""The loss of every method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytorch_metric_learning.utils.common_functions import TorchInitWrapper
from torch import nn

from benchmarks.engine.methods import METHODS, MemorySetup
from benchmarks.engine.methods import build_loss as build
from benchmarks.papers.beside import NoLoss
from benchmarks.papers.gradient_update import GradientUpdate
from benchmarks.papers.pml_parts import make_loss, make_miner
from benchmarks.papers.settings import Settings
from pml_xbn.losses import BatchLoss, SampledNormalizedSoftmaxLoss, StopGradientSoftmaxLoss


@dataclass(frozen=True, kw_only=True)
class LossSetup(MemorySetup):
    """What losses need to know of the task beside what memories do."""

    num_classes: int
    world_size: int

    @property
    def known(self) -> dict[str, Any]:
        """The numbers that losses ask for, by PML's names."""
        return {"num_classes": self.num_classes, "embedding_size": self.embedding_size}


# Settings that a method's class takes under their own names.
_LAMBDAS = ("mean_lambda", "std_lambda")
_TAKEN: dict[str, tuple[str, ...]] = {
    "ema": ("momentum",),
    "axbn": ("process_noise", "measurement_noise", "initial_variance", "gain_update_interval"),
    "per-class": _LAMBDAS,
    "super-class": _LAMBDAS,
}


def build_loss(settings: Settings, setup: LossSetup) -> nn.Module:
    """Returns the method's loss, which takes (embeddings, labels)."""
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
            beta=settings.sgsl_weight,
            weight_init_func=TorchInitWrapper(nn.init.zeros_),
        )
    if settings.method == "super-class" and setup.superclasses is None:
        raise ValueError(
            f"{settings.dataset} has no superclasses, which --method super-class needs; choose a data set "
            "that has (glyphs, han, sop, in-shop, deep-fashion2, cifar100) or another method"
        )
    if not has_memory(settings):
        return build_batch_loss(settings, setup)
    options: dict[str, Any] = {name: getattr(settings, name) for name in _TAKEN.get(settings.method, ())}
    if settings.method == "delayed":
        options["delay"] = settings.delay * setup.steps_per_epoch
    if settings.batch_loss_weight:
        options["batch_loss_weight"] = settings.batch_loss_weight
    options["warmup"] = settings.memory_warmup
    if settings.update == "average" or settings.update_momentum:
        options |= {"update": "average", "update_momentum": settings.update_momentum}
    if settings.update == "gradient":
        if settings.method != "xbm":
            raise ValueError(f"--update gradient with --method {settings.method}: it is a variant of xbm")
        # Of the loss as the optimizer sees it.
        divisor = settings.batch_size if settings.loss_per_anchor else 1
        options |= {"memory": GradientUpdate, "update_learning_rate": settings.update_learning_rate / divisor}
    return _build(settings.method, settings, setup, **options)


def build_batch_loss(settings: Settings, setup: LossSetup) -> nn.Module:
    """Returns the loss without memory, of no-xbm, and of all methods while the new layers train alone."""
    return _build("no-xbm", settings, setup)


def build_beside(settings: Settings, setup: LossSetup) -> nn.Module:
    """Returns the loss that is added to the method's, of the batch of all ranks."""
    if settings.beside == "none":
        return NoLoss()
    loss = make_loss(settings.beside, settings.beside_options, "--beside", **setup.known)
    return BatchLoss(loss, gather_distributed=setup.world_size > 1)


def has_memory(settings: Settings) -> bool:
    return METHODS.get(settings.method) is not None


def _build(method: str, settings: Settings, setup: LossSetup, **options: Any) -> nn.Module:
    loss = make_loss(settings.loss, settings.loss_options, **setup.known)
    miner = make_miner(settings.miner, settings.miner_options)
    return build(method, setup, loss, miner, gather_distributed=setup.world_size > 1, **options)
