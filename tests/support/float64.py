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


class Gain:
    """Moves rows by what is no noise of the difference to the batch, of the mean and of log σ."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.noises: list[list[float]] = [[], []]
        self.squares: list[list[float]] = [[], []]
        self.previous: Rows | None = None

    def levels(self, rows: Rows) -> Rows:
        mean, std = mean_std(rows)
        has_spread = std > 1e-12 * (1 + np.abs(mean))
        return np.stack([mean, np.where(has_spread, np.log(np.where(has_spread, std, 1.0)), np.nan)])

    def average(self, values: list[float]) -> float:
        average = 0.0
        for count, value in enumerate(values, 1):
            average += (value - average) / min(count, self.window)
        return average

    def gain(self, part: int) -> float:
        noises, squares = self.noises[part], self.squares[part]
        if len(squares) <= self.window or not noises:
            return 1.0
        noise, square = self.average(noises), self.average(squares)
        return 1 - noise / square if square > noise else 0.0

    def __call__(self, memory: Rows, _: Labels, batch: Rows, __: Labels) -> Rows:
        if len(batch) < 2:
            return memory
        new = self.levels(batch)
        if self.previous is not None:
            self._note(self.noises, (new - self.previous) ** 2 / 2)
        self.previous = new
        if len(memory) < 2:
            return memory
        gap, counts = new - self.levels(memory), [len(x) for x in self.squares]
        self._note(self.squares, gap**2)
        gain = [self.gain(0), self.gain(1) if len(self.squares[1]) > counts[1] else np.nan]
        mean, std = mean_std(memory)
        as_xbn = match(memory, (mean, std), mean_std(batch)) - new[0]
        unknown = as_xbn if counts[0] < self.window else memory - mean
        known = (memory - mean) * np.exp(np.nan_to_num(gain[1] * gap[1]))
        return np.where(np.isnan(gap[1]), unknown, known) + mean + gain[0] * gap[0]

    def _note(self, lists: list[list[float]], squares: Rows) -> None:
        for values, of_dimensions in zip(lists, squares, strict=True):
            if (known := of_dimensions[~np.isnan(of_dimensions)]).size:
                values.append(float(known.mean()))


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
