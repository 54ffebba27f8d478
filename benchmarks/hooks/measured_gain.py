"""Shifts that know how noisy they are: a Kalman filter whose measurement noise is measured."""

from __future__ import annotations

import torch
from torch import Tensor


class MeasuredGain:
    r"""Moves the rows by K of the difference between batch and memory, K being what is not noise of it.

    .. math:: \hat z = z + K (E[B] - E[R]), \quad K = 1 - \frac{\overline{v}}{\overline{(E[B] - E[R])^2}}

    v is the sampling noise of the batch's mean: the variance between the means of its classes, over their
    number. What is drawn over is a moving average. Of an innovation, which is the sum of how far the rows are
    behind and of noise, the first is its part; so K is the gain of a Kalman filter in its steady state.

    Args:
        window: steps over which the averages are taken; as long as these have not passed, K is 1.
        per_dimension: a K for every dimension, in place of one for all.
        match_std: multiplies the rows' σ likewise by (σ[B] / σ[R])^K, with a K from the logarithms. Their
            noise is that between two halves of the batch's classes.
    """

    def __init__(self, window: int = 20, per_dimension: bool = False, match_std: bool = False) -> None:
        self.window, self.per_dimension, self.match_std = window, per_dimension, match_std
        self.num_calls = 0
        self.gains: dict[str, Tensor] = {}  # the last K of "mean" and "std"
        self._averages: dict[str, Tensor] = {}

    def __call__(
        self, memory: Tensor, memory_labels: Tensor, batch: Tensor, batch_labels: Tensor
    ) -> Tensor | None:
        if min(len(memory), len(batch)) < 2 or len(batch_labels.unique()) < 4:
            return None
        self.num_calls += 1
        mean = memory.mean(dim=0)
        gap = batch.mean(dim=0) - mean
        moved = gap * self._gain("mean", gap, _noise_of_mean(batch, batch_labels))
        if not self.match_std:
            return memory + moved
        first, second = _halves(batch, batch_labels)
        ratio = (batch.std(dim=0) / memory.std(dim=0)).log()
        noise = (first.std(dim=0) / second.std(dim=0)).log().square() / 4
        scale = (ratio * self._gain("std", ratio, noise)).exp()
        return (memory - mean) * scale + mean + moved

    def _gain(self, name: str, gap: Tensor, noise: Tensor) -> Tensor:
        """Averages squared gap and noise; returns the part of the gap that is not noise."""
        now = torch.stack([gap.square(), noise])
        if not self.per_dimension:
            now = now.mean(dim=1, keepdim=True)
        weight = 1 / min(self.num_calls, self.window)  # a plain mean at first
        before = self._averages.get(name, now)
        square, noise = self._averages[name] = before.lerp(now, weight)
        gain = (1 - noise / square).clamp(0, 1) if self.num_calls > self.window else torch.ones_like(square)
        self.gains[name] = gain
        return gain


def _noise_of_mean(batch: Tensor, labels: Tensor) -> Tensor:
    """Returns the variance of the batch's mean, (d,), from that between the means of its classes."""
    _, numbers, counts = labels.unique(return_inverse=True, return_counts=True)
    sums = batch.new_zeros(len(counts), batch.shape[1]).index_add(0, numbers, batch)
    return (sums / counts[:, None]).var(dim=0) / len(counts)


def _halves(batch: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows of every other class, and those of the rest."""
    _, numbers = labels.unique(return_inverse=True)
    return batch[numbers % 2 == 0], batch[numbers % 2 == 1]
