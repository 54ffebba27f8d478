"""Shifts that know how noisy they are: a Kalman filter whose measurement noise is measured."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


class MeasuredGain:
    r"""Moves the rows by K of the difference between batch and memory, K being what is not noise of it.

    .. math:: \hat z = z + K (E[B] - E[R]), \quad K = 1 - \frac{\overline{v}}{\overline{(E[B] - E[R])^2}}

    v is the sampling noise of the batch's mean, and what is drawn over is a moving average. A difference is
    the sum of how far the rows are behind and of noise, and K is the first one's part of it. That is the gain
    of a Kalman filter in its steady state.

    Args:
        window: steps over which the averages are taken; as long as these have not passed, K is 1.
        noise: what v is: of "classes", the variance between the means of the batch's classes, over their
            number; or of "steps", half of the squared difference between the means of one batch and the
            next. Where batch normalization trains, means of batches differ by less than their classes make
            expect, and only the latter knows that; but it holds what the model moves in a step.
        per_dimension: a K for every dimension, in place of one for all.
        match_std: multiplies the rows' σ likewise by (σ[B] / σ[R])^K, with a K of the logarithms, whose noise
            is that of steps.
    """

    def __init__(
        self,
        window: int = 20,
        noise: Literal["classes", "steps"] = "classes",
        per_dimension: bool = False,
        match_std: bool = False,
    ) -> None:
        self.window, self.noise = window, noise
        self.per_dimension, self.match_std = per_dimension, match_std
        self.num_calls = 0
        self.gains: dict[str, Tensor] = {}  # the last K of "mean" and "std"
        self._averages: dict[str, Tensor] = {}
        self._previous: dict[str, Tensor] = {}

    def __call__(
        self, memory: Tensor, memory_labels: Tensor, batch: Tensor, batch_labels: Tensor
    ) -> Tensor | None:
        if min(len(memory), len(batch)) < 2 or len(batch_labels.unique()) < 2:
            return None
        self.num_calls += 1
        mean, of_batch = memory.mean(dim=0), batch.mean(dim=0)
        of_steps = self._noise_of_steps("mean", of_batch)
        noise = of_steps if self.noise == "steps" else noise_of_classes(batch, batch_labels)
        moved = (of_batch - mean) * self._gain("mean", of_batch - mean, noise)
        if not self.match_std:
            return memory + moved
        of_batch, spread = batch.std(dim=0).log(), memory.std(dim=0).log()
        gain = self._gain("std", of_batch - spread, self._noise_of_steps("std", of_batch))
        return (memory - mean) * ((of_batch - spread) * gain).exp() + mean + moved

    def _noise_of_steps(self, name: str, value: Tensor) -> Tensor:
        previous = self._previous.get(name, value)
        self._previous[name] = value
        return (value - previous).square() / 2

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


def noise_of_classes(batch: Tensor, labels: Tensor) -> Tensor:
    """Returns the variance of the batch's mean, (d,), from that between the means of its classes."""
    _, numbers, counts = labels.unique(return_inverse=True, return_counts=True)
    sums = batch.new_zeros(len(counts), batch.shape[1]).index_add(0, numbers, batch)
    return (sums / counts[:, None]).var(dim=0) / len(counts)
