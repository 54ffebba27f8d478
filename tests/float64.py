"""The papers' equations written out row by row in float64 NumPy, sharing nothing with the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Rows = np.ndarray
Adapt = Callable[[Rows, Sequence[int], Rows, Sequence[int]], Rows]


def match(row: Rows, mean: Rows, std: Rows, new_mean: Rows, new_std: Rows) -> Rows:
    out = np.empty_like(row)
    for j in range(len(row)):
        has_spread = std[j] > 1e-12 * (1 + abs(mean[j]))  # equal rows of the order of 1 may be rounded apart
        scale = new_std[j] / std[j] if has_spread else 1.0
        out[j] = (row[j] - mean[j]) * scale + new_mean[j]
    return out


def mean_std(rows: Rows) -> tuple[Rows, Rows]:
    mean = sum(rows) / len(rows)
    return mean, np.sqrt(sum((row - mean) ** 2 for row in rows) / (len(rows) - 1))


class Xbn:
    """AXBN paper, Eq. 6; thesis Eq. 4.5 without σ; AXBN paper Table 5 with a momentum."""

    def __init__(self, match_std: bool = True, momentum: float = 0.0) -> None:
        self.match_std, self.momentum = match_std, momentum
        self.estimate: tuple[Rows, Rows] | None = None

    def gain(self, batch_size: int) -> float:
        return 1 - self.momentum

    def __call__(self, memory: Rows, _: Sequence[int], batch: Rows, __: Sequence[int]) -> Rows:
        if len(batch) < 2:
            return memory
        new = mean_std(batch)
        gain = self.gain(len(batch))
        old = new if self.estimate is None else self.estimate
        self.estimate = tuple(o + gain * (n - o) for o, n in zip(old, new, strict=True))
        if len(memory) < 2:
            return memory
        mean, std = mean_std(memory)
        new_mean, new_std = self.estimate
        return np.array([match(z, mean, std, new_mean, new_std if self.match_std else std) for z in memory])


class Axbn(Xbn):
    """AXBN paper, Algorithm 1 with r / |B| (§3.2.1) and the interval of §5.1."""

    def __init__(self, q: float, r: float, p0: float, interval: int) -> None:
        super().__init__()
        self.q, self.r, self.p, self.interval = q, r, p0, interval
        self.k, self.calls = 0.0, 0

    def gain(self, batch_size: int) -> float:
        if self.calls % self.interval == 0:
            p_minus = self.p + self.q
            self.k = p_minus / (p_minus + self.r / batch_size)
            self.p = (1 - self.k) * p_minus
        self.calls += 1
        return self.k


class GroupXbn:
    """Thesis Eq. 4.3 and Algorithm 2; Eq. 4.4 with groups of labels."""

    def __init__(
        self,
        mean_lambda: float = 0.5,
        std_lambda: float = 1.0,
        normalize_absent: bool = True,
        group_of: Callable[[int], int] = int,
    ) -> None:
        self.mean_lambda, self.std_lambda = mean_lambda, std_lambda
        self.normalize_absent, self.group_of = normalize_absent, group_of

    def __call__(self, memory: Rows, labels: Sequence[int], batch: Rows, batch_labels: Sequence[int]) -> Rows:
        if len(batch) < 2 or len(memory) < 2:
            return memory
        in_memory = [self.group_of(int(label)) for label in labels]
        in_batch = [self.group_of(int(label)) for label in batch_labels]
        mean, std = mean_std(memory)
        batch_mean, batch_std = mean_std(batch)
        out = memory.copy()
        for i, group in enumerate(in_memory):
            mine = memory[[g == group for g in in_memory]]
            theirs = batch[[g == group for g in in_batch]]
            if len(mine) > 1 and len(theirs) > 1:
                group_mean, group_std = mean_std(theirs)
                out[i] = match(
                    memory[i],
                    *mean_std(mine),
                    self.mean_lambda * batch_mean + (1 - self.mean_lambda) * group_mean,
                    self.std_lambda * batch_std + (1 - self.std_lambda) * group_std,
                )
            elif self.normalize_absent:
                out[i] = match(memory[i], mean, std, batch_mean, batch_std)
        return out


class Memory:
    """A queue of at most ``size`` rows, oldest overwritten first, adapted before each batch."""

    def __init__(self, size: int, dim: int, adapt: Adapt, unit_norm: bool = False) -> None:
        self.size, self.adapt, self.unit_norm = size, adapt, unit_norm
        self.rows, self.labels, self.next = np.zeros((0, dim)), [], 0

    def step(self, batch: Rows, labels: Sequence[int]) -> None:
        self.rows = self.adapt(self.rows, self.labels, batch, labels)
        if self.unit_norm:
            self.rows = self.rows / np.linalg.norm(self.rows, axis=1, keepdims=True)
        rows = list(self.rows)
        for row, label in zip(batch, labels, strict=True):
            if len(rows) < self.size:
                rows.append(row)
                self.labels.append(int(label))
            else:
                rows[self.next], self.labels[self.next] = row, int(label)
            self.next = (self.next + 1) % self.size
        self.rows = np.array(rows).reshape(-1, batch.shape[1])
