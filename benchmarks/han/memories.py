"""The losses that are compared on Han: without a memory, with one, and with proxies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import (
    ContrastiveLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    SupConLoss,
)
from torch import Tensor, nn
from torch.nn.functional import normalize

from benchmarks.han.cases import EPOCH, Case
from benchmarks.hooks.gain_of_classes import GainOfClasses
from pml_xbn import AXBNWrapper, XBNWrapper
from pml_xbn.adapters import MeasuredGain, MomentMatching
from pml_xbn.losses import AdaptiveCrossBatchMemory, BatchLoss

TEMPERATURE = 0.1
DIM = 64
_RAMP_DOWN = 0.15  # of all steps


class NegativesOnly(nn.Module):
    """SupCon whose positives come from the batch, which have a gradient, and whose negatives come from both.

    Args:
        memory_size: rows that it stores.
        hook: adapts them, as a hook of `AdaptiveCrossBatchMemory`.
        batch_loss_weight: weight of the batch's own loss, which is added.
    """

    warmup = num_calls = 0  # as `fill_from` asks a memory

    def __init__(
        self, memory_size: int, hook: Callable[..., Tensor | None] | None, batch_loss_weight: float
    ) -> None:
        super().__init__()
        self.memory_size, self.hook, self.batch_loss_weight = memory_size, hook, batch_loss_weight
        self.embedding_memory, self.labels = torch.zeros(memory_size, DIM), torch.full((memory_size,), -1)
        self.queue_idx = self.num_rows = 0

    def fill_memory(self, embeddings: Tensor, labels: Tensor) -> None:
        places = (self.queue_idx + torch.arange(len(labels))) % self.memory_size
        self.embedding_memory[places], self.labels[places] = embeddings.detach(), labels
        self.queue_idx = (self.queue_idx + len(labels)) % self.memory_size
        self.num_rows = min(self.num_rows + len(labels), self.memory_size)

    def _fill(self, embeddings: Tensor, labels: Tensor) -> bool:  # as `fill_from` calls a memory
        self.fill_memory(embeddings, labels)
        return True

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        rows, of_rows = self.embedding_memory[: self.num_rows], self.labels[: self.num_rows]
        if self.hook is not None and len(rows):
            adapted = self.hook(rows, of_rows, embeddings.detach(), labels)
            if adapted is not None:
                rows.copy_(adapted)
        anchors = normalize(embeddings)
        within, beyond = anchors @ anchors.T / TEMPERATURE, anchors @ normalize(rows).T / TEMPERATURE
        same = labels[:, None] == labels
        itself = torch.eye(len(labels), dtype=torch.bool)
        own = within.masked_fill(itself, -torch.inf).logsumexp(dim=1)
        negatives = beyond.masked_fill(labels[:, None] == of_rows, -torch.inf).logsumexp(dim=1)
        positives = same & ~itself

        def loss(total: Tensor) -> Tensor:
            logits = (within * positives).sum(dim=1) / positives.sum(dim=1)
            return (total - logits).mean()

        value = loss(torch.logaddexp(own, negatives))
        self.fill_memory(embeddings, labels)
        return value + self.batch_loss_weight * loss(own) if self.batch_loss_weight else value


def wrapped_loss(name: str) -> nn.Module:
    """Returns SupCon, or the contrastive loss of Cross-Batch Memory (margins of cosines of 1 and 0.5)."""
    if name == "supcon":
        return SupConLoss(TEMPERATURE)
    return ContrastiveLoss(pos_margin=1, neg_margin=0.5, distance=CosineSimilarity())


def build_memory(case: Case, memory_size: int) -> Any:
    """Returns the memory of a case, without its warm-up; None without one."""
    weight = 0.0 if case.batch_loss == "ramp" else float(case.batch_loss)
    if case.method.endswith("negatives"):
        hook = MomentMatching() if case.method.startswith("xbn") else None
        return NegativesOnly(memory_size, hook, weight)
    classes: dict[str, tuple[type[AdaptiveCrossBatchMemory], dict[str, Any]]] = {
        "xbm": (AdaptiveCrossBatchMemory, {}),
        "xbn": (XBNWrapper, {}),
        "centre": (XBNWrapper, {"match_std": False}),
        "axbn": (AXBNWrapper, {}),
        **{name: (AdaptiveCrossBatchMemory, {}) for name in GAIN_HOOKS},
    }
    if case.method not in classes:
        return None
    cls, options = classes[case.method]
    loss = wrapped_loss(case.loss)
    built = cls(loss, embedding_size=DIM, memory_size=memory_size, batch_loss_weight=weight, **options)
    if case.method in GAIN_HOOKS:
        built.register_memory_hook(GAIN_HOOKS[case.method]())
    return built


GAIN_HOOKS: dict[str, Callable[[], Any]] = {
    "gain": GainOfClasses,
    "gain per dimension": lambda: MeasuredGain(window=100, match_std=False, per_dimension=True),
    "gain of both": MeasuredGain,
}


class StepLoss(nn.Module):
    """The loss of a step, by its number: warm-up, memory, the batch's own, and proxies.

    Attributes:
        memory: None without one.
        first: the first step with the memory, before which it is to be filled if that is not 0.
    """

    def __init__(self, case: Case, memory_size: int, num_classes: int) -> None:
        super().__init__()
        self.case, self.memory = case, build_memory(case, memory_size)
        self.first = EPOCH if case.begins == "after an epoch" else 0
        self.batch_loss = BatchLoss(wrapped_loss(case.loss))
        self.proxies: nn.Module | None = None
        if case.method.startswith("norm-softmax"):
            self.proxies = NormalizedSoftmaxLoss(num_classes, DIM)
        elif case.method.startswith("proxy-anchor"):
            self.proxies = ProxyAnchorLoss(num_classes, DIM)

    def ramp(self, step: int) -> float:
        """Returns the memory's weight: up within an epoch, and down to 0 in the last 15 % of the steps."""
        up = (step - self.first + 1) / EPOCH
        down = (self.case.steps - step) / (_RAMP_DOWN * self.case.steps)
        return max(0.0, min(1.0, up, down))

    def forward(self, embeddings: Tensor, labels: Tensor, step: int) -> Tensor:
        if self.proxies is not None:
            value: Tensor = self.proxies(embeddings, labels)
            return value
        if self.memory is None or step < self.first:
            return self.batch_loss(embeddings, labels)
        value = self.memory(embeddings, labels)
        if self.case.batch_loss == "ramp":
            value = self.ramp(step) * value + self.batch_loss(embeddings, labels)
        return value
