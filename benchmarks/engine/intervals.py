"""Differences that are paired by seed, and their intervals."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student


class Difference(NamedTuple):
    """Gaps of two methods, paired by seed; not empty.

    ``pooled`` has standard deviation and degrees of freedom of the gaps of many comparisons.
    """

    gaps: list[float]
    pooled: tuple[float, int] | None = None

    def __str__(self) -> str:
        interval = "one seed" if self.half_width is None else f"± {self.half_width:.1f}"
        return f"{self.mean:+.1f} ({interval})"

    @property
    def mean(self) -> float:
        return fmean(self.gaps)

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % interval of the mean (Student's t); None for a single seed."""
        if len(self.gaps) == 1:
            return None
        deviation, degrees = self.pooled or (stdev(self.gaps), len(self.gaps) - 1)
        return float(student.ppf(0.975, degrees) * deviation / len(self.gaps) ** 0.5)


def paired(ours: dict[int, float], theirs: dict[int, float]) -> Difference | None:
    """Returns the difference of two methods' values by seed; None where no seed has both."""
    gaps = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    return Difference(gaps) if gaps else None


def pool(differences: Iterable[Difference]) -> list[Difference]:
    """Returns the differences with one standard deviation for all: the root of the mean variance.

    Comparisons of one seed have no variance, and stay as they are.
    """
    all_of_them = list(differences)
    squares = [(stdev(d.gaps) ** 2, len(d.gaps) - 1) for d in all_of_them if len(d.gaps) > 1]
    degrees = sum(n for _, n in squares)
    if not degrees:
        return all_of_them
    deviation = (sum(variance * n for variance, n in squares) / degrees) ** 0.5
    return [d._replace(pooled=(deviation, degrees)) if len(d.gaps) > 1 else d for d in all_of_them]


def bootstrap(gaps: np.ndarray, images: np.ndarray, resamples: int = 10_000) -> tuple[float, float, float]:
    """Returns a mean difference in per cent and its 95 % interval, over seeds and classes drawn anew.

    Args:
        gaps: by how many images one method finds more of a class than another, (seeds, classes).
        images: of every class, (classes,).
    """
    draw = np.random.default_rng(0)
    seeds, classes = (draw.multinomial(n, np.full(n, 1 / n), resamples) for n in gaps.shape)
    differences = 100 * (seeds @ gaps * classes).sum(axis=1) / (classes @ images) / len(gaps)
    low, high = np.quantile(differences, (0.025, 0.975))
    return 100 * gaps.sum() / images.sum() / len(gaps), low, high
