"""Moments that are kept up as rows come and go, against moments of the rows themselves.

``PML_XBN_DRIFT_STEPS`` sets for how many steps (default 3000).
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import Tensor

from pml_xbn.adapters import GroupMomentMatching, MomentMatching
from pml_xbn.adapters.base_adapter import BaseAdapter
from pml_xbn.adapters.running_moments import RunningMoments

STEPS = int(os.environ.get("PML_XBN_DRIFT_STEPS", "3000"))
ADAPTERS = {
    "xbn": MomentMatching,
    "centre": lambda: MomentMatching(match_std=False),
    "per-class": lambda: GroupMomentMatching(0.3, 0.5),
    "super-class, absent stay": lambda: GroupMomentMatching(
        superclasses=[0, 0, 1, 1, 2], normalize_absent=False
    ),
}
M, B, D = 48, 8, 3


class Queue:
    """A memory that reports its changes, with two buffers that take turns."""

    def __init__(self, adapter: BaseAdapter) -> None:
        self.adapter, self.next, self.full = adapter, 0, False
        self.rows, self.spare = torch.zeros(M, D), torch.zeros(M, D)
        self.labels = torch.zeros(M, dtype=torch.int64)

    @property
    def occupied(self) -> Tensor:
        return self.rows if self.full else self.rows[: self.next]

    def step(self, batch: Tensor, labels: Tensor) -> None:
        n = len(self.occupied)
        if not self.adapter.adapt_into(self.spare[:n], self.occupied, self.labels[:n], batch, labels):
            self.spare[:n] = self.occupied
        self.rows, self.spare = self.spare, self.rows
        places = torch.arange(self.next, self.next + len(batch)) % M
        self.adapter.replaced(self.rows[places] if self.full else self.rows[:0], batch)
        self.rows[places], self.labels[places] = batch, labels
        self.next = (self.next + len(batch)) % M
        self.full = self.full or self.next == 0


def drifting_batch(generator: torch.Generator, step: int) -> tuple[Tensor, Tensor]:
    """Its mean walks off to forty times the spread, which swings by a factor of five."""
    position = 20.0 * np.sin(step / 3000)
    spread = 0.5 + np.cos(step / 700) ** 2 * 2
    rows = torch.randn(B, D, generator=generator) * spread + position
    return rows, torch.randint(0, 5, (B,), generator=generator)


@pytest.mark.parametrize("name", ADAPTERS)
def test_running_moments_stay_exact_through_drift_wrap_and_resume(name: str) -> None:
    queue, generator = Queue(ADAPTERS[name]()), torch.Generator().manual_seed(0)
    worst = 0.0
    for step in range(STEPS):
        queue.step(*drifting_batch(generator, step))
        if step % 1777 == 1776:  # resumed by another object
            state = queue.adapter.state_dict()
            queue.adapter = ADAPTERS[name]()
            queue.adapter.load_state_dict(state)
        if step % 97 == 96:
            rows = queue.occupied.double()
            running = RunningMoments()
            running.load(queue.adapter.running.state())
            mean, std = running.moments_of(rows)
            # Relative to the size of the rows, and of their spread.
            error_of_mean = (mean - rows.mean(0)).abs() / rows.abs().mean(0)
            error_of_std = (std - rows.std(0)).abs() / rows.std(0)
            worst = max(worst, error_of_mean.max().item(), error_of_std.max().item())
    assert worst < 1e-5


def test_rows_that_come_and_go_change_the_moments_by_their_own() -> None:
    running, rows = RunningMoments(), torch.randn(20, 4, dtype=torch.float64)
    running.moments_of(rows)
    added = torch.randn(7, 4, dtype=torch.float64) + 5
    running.replace(rows[:3], added)
    now = torch.cat([rows[3:], added])
    mean, std = running.moments_of(torch.empty(24, 4).fill_(float("nan")))  # not read
    torch.testing.assert_close(mean, now.mean(0))
    torch.testing.assert_close(std, now.std(0))


def test_all_rows_may_go() -> None:
    running, rows = RunningMoments(), torch.randn(5, 2, dtype=torch.float64)
    running.moments_of(rows)
    running.replace(rows, rows[:0])
    running.replace(rows[:0], rows)
    torch.testing.assert_close(running.moments_of(rows).mean, rows.mean(0))


def test_moments_are_measured_anew_when_due_or_asked_for() -> None:
    running = RunningMoments()
    running.moments_of(torch.zeros(5, 2))
    changed = torch.ones(5, 2)
    assert running.moments_of(changed).mean.tolist() == [0, 0]
    running.forget()
    assert running.moments_of(changed).mean.tolist() == [1, 1]
    running.replace(changed[:0], changed)
    running.replace(changed, changed[:0])
    running.replace(changed[:0], changed)
    running.replace(changed, changed[:0])
    assert running.moments_of(3 * changed).mean.tolist() == [3, 3]


def test_another_number_of_rows_is_noticed() -> None:
    running = RunningMoments()
    running.moments_of(torch.zeros(5, 2))
    assert running.moments_of(torch.ones(6, 2)).mean.tolist() == [1, 1]
