"""Moments weighted by recency, against a queue in float64 that knows when each of its rows came."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from float64 import mean_std
from pytorch_metric_learning.losses import ContrastiveLoss

from benchmarks.hooks.recency_moments import RecencyMatching
from pml_xbn.losses import AdaptiveCrossBatchMemory

D, SIZE, HALF_LIFE = 3, 23, 7.0
Array = np.ndarray


def weighted(rows: Array, ages: Array) -> tuple[Array, Array]:
    """E_w and σ_w, row by row."""
    weights = [0.5 ** (age / HALF_LIFE) for age in ages]
    total, squares = sum(weights), sum(w * w for w in weights)
    mean = sum(w * z for w, z in zip(weights, rows, strict=True)) / total
    spread = sum(w * (z - mean) ** 2 for w, z in zip(weights, rows, strict=True))
    return mean, np.sqrt(spread / (total - squares / total))


class Queue:
    """Rows in their places, each with its number in the order of storing."""

    def __init__(self) -> None:
        self.rows, self.numbers, self.stored = np.zeros((0, D)), np.zeros(0), 0

    def adapt(self, batch: Array) -> None:
        if len(batch) > 1 and len(self.rows) > 1:
            (mean, std), (new_mean, new_std) = (
                weighted(self.rows, self.stored - 1 - self.numbers),
                mean_std(batch),
            )
            self.rows = (self.rows - mean) / std * new_std + new_mean

    def put(self, batch: Array) -> None:
        for row in batch:
            place = self.stored % SIZE
            if place == len(self.rows):
                self.rows = np.append(self.rows, row[None], axis=0)
                self.numbers = np.append(self.numbers, self.stored)
            self.rows[place], self.numbers[place] = row, self.stored
            self.stored += 1


def batches(num_steps: int) -> list[Array]:
    rng = np.random.default_rng(0)
    sizes = (5, 1, 9, 2, 16)
    return [
        (rng.normal(size=(sizes[step % 5], D)) * (1 + np.sin(step / 9) / 2) + step / 5).astype(np.float32)
        for step in range(num_steps)
    ]


@pytest.mark.parametrize("delay", [0, 11])
@pytest.mark.parametrize("filled", [0, 10])
def test_rows_of_a_memory_equal_the_replay(delay: int, filled: int) -> None:
    memory = AdaptiveCrossBatchMemory(ContrastiveLoss(), D, SIZE, delay=delay)
    memory.register_memory_hook(RecencyMatching(HALF_LIFE, memory))
    queue = Queue()
    first = np.random.default_rng(1).normal(size=(filled, D)).astype(np.float32)
    memory.fill_memory(torch.from_numpy(first), torch.zeros(filled, dtype=torch.int64))
    queue.put(first)
    for step, batch in enumerate(batches(80)):
        memory(torch.from_numpy(batch), torch.arange(len(batch)))
        if step >= delay:
            queue.adapt(batch.astype(np.float64))
        queue.put(batch)
        rows = memory.embedding_memory[: memory.num_rows].numpy()
        np.testing.assert_allclose(rows, queue.rows, rtol=1e-5, atol=2e-5)
