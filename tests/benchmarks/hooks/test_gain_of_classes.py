"""The measured gain of classes, against plain numbers in float64."""

from __future__ import annotations

import numpy as np
import torch
from two_of_each_class import CLASSES, LABELS, D, batch_of, memory_of

from benchmarks.hooks.gain_of_classes import GainOfClasses


def test_the_gain_of_classes_is_one_minus_their_noise_over_the_squared_gap() -> None:
    window, memory, hook = 3, memory_of(0).numpy(), GainOfClasses(window=3)
    average = np.zeros(2)
    for step in range(1, 9):
        batch = batch_of(step, centre=0.3)
        moved = hook(torch.from_numpy(memory), LABELS, batch, LABELS)
        means = batch.numpy().reshape(CLASSES, 2, D).mean(axis=1)
        gap = batch.numpy().mean(axis=0) - memory.mean(axis=0)
        now = np.array([(gap**2).mean(), means.var(axis=0, ddof=1).mean() / CLASSES])
        average += (now - average) / min(step, window)
        gain = np.clip(1 - average[1] / average[0], 0, 1) if step > window else 1.0
        np.testing.assert_allclose(moved, memory + gain * gap, atol=1e-12)
