"""The papers' equations in float64 NumPy, and a memory that follows them, written apart from the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Rows = np.ndarray
Labels = Sequence[int] | np.ndarray
Moments = tuple[Rows, Rows]
Adapt = Callable[[Rows, Labels, Rows, Labels], Rows]


def mean_std(rows: Rows) -> Moments:
    return rows.mean(axis=0), rows.std(axis=0, ddof=1)


def match(rows: Rows, of_rows: Moments, target: Moments) -> Rows:
    """Eq. 6 of the AXBN paper; a dimension whose rows are equal, but for rounding, is only shifted."""
    (mean, std), (new_mean, new_std) = of_rows, target
    has_spread = std > 1e-12 * (1 + np.abs(mean))
    scale = np.where(has_spread, new_std / np.where(has_spread, std, 1.0), 1.0)
    return (rows - mean) * scale + new_mean


class Xbn:
    """AXBN paper, Eq. 6; thesis Eq. 4.5 without σ; AXBN paper Table 5 with a momentum."""

    def __init__(self, match_std: bool = True, momentum: float = 0.0) -> None:
        self.match_std, self.momentum = match_std, momentum
        self.estimate: Moments | None = None

    def gain(self, batch_size: int) -> float:
        return 1 - self.momentum

    def __call__(self, memory: Rows, _: Labels, batch: Rows, __: Labels) -> Rows:
        if len(batch) < 2:
            return memory
        new, gain = mean_std(batch), self.gain(len(batch))
        old = new if self.estimate is None else self.estimate
        mean, std = (o + gain * (n - o) for o, n in zip(old, new, strict=True))
        self.estimate = mean, std
        if len(memory) < 2:
            return memory
        of_memory = mean_std(memory)
        return match(memory, of_memory, (mean, std if self.match_std else of_memory[1]))


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
        self.lambdas = mean_lambda, std_lambda
        self.normalize_absent, self.group_of = normalize_absent, group_of

    def __call__(self, memory: Rows, labels: Labels, batch: Rows, batch_labels: Labels) -> Rows:
        if len(batch) < 2 or len(memory) < 2:
            return memory
        in_memory, in_batch = (np.array([self.group_of(int(x)) for x in y]) for y in (labels, batch_labels))
        of_batch = mean_std(batch)
        out = match(memory, mean_std(memory), of_batch) if self.normalize_absent else memory.copy()
        for group in set(in_batch):
            mine, theirs = memory[in_memory == group], batch[in_batch == group]
            if len(mine) > 1 and len(theirs) > 1:
                parts = zip(self.lambdas, of_batch, mean_std(theirs), strict=True)
                target = tuple(share * whole + (1 - share) * own for share, whole, own in parts)
                out[in_memory == group] = match(mine, mean_std(mine), target)
        return out


class Memory:
    """A queue of at most ``size`` rows, oldest overwritten first, adapted before each batch."""

    def __init__(self, size: int, dim: int, adapt: Adapt, unit_norm: bool = False) -> None:
        self.size, self.adapt, self.unit_norm = size, adapt, unit_norm
        self.rows, self.labels, self.next = np.zeros((0, dim)), [], 0

    def step(self, batch: Rows, labels: Labels) -> None:
        self.rows = self.adapt(self.rows, self.labels, batch, labels)
        if self.unit_norm:
            self.rows = self.rows / np.linalg.norm(self.rows, axis=1, keepdims=True)
        self.store(batch, labels)

    def store(self, batch: Rows, labels: Labels) -> None:
        indices = (self.next + np.arange(len(batch))) % self.size
        missing = max(0, min(self.next + len(batch), self.size) - len(self.rows))
        self.rows = np.concatenate([self.rows, np.zeros((missing, batch.shape[1]))])
        self.labels = [*self.labels, *[0] * missing]
        self.rows[indices] = batch
        for index, label in zip(indices, labels, strict=True):
            self.labels[index] = int(label)
        self.next = (self.next + len(batch)) % self.size
