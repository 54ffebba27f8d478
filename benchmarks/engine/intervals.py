"""Differences that are paired by seed, and their intervals, each of its own pairs alone."""

from __future__ import annotations

from functools import lru_cache
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student


class Difference(NamedTuple):
    """Gaps of two methods, paired by seed; not empty."""

    gaps: list[float]

    def __str__(self) -> str:
        interval = "one seed" if self.half_width is None else f"± {self.half_width:.1f}"
        return f"{self.mean:+.1f} ({interval})"

    @property
    def mean(self) -> float:
        return fmean(self.gaps)

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % interval of the mean (Student's t); None for a single seed."""
        number = len(self.gaps)
        if number == 1:
            return None
        return float(student.ppf(0.975, number - 1) * stdev(self.gaps) / number**0.5)


def paired(ours: dict[int, float], theirs: dict[int, float]) -> Difference | None:
    """Returns the difference of two methods' values by seed; None where no seed has both."""
    gaps = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    return Difference(gaps) if gaps else None


def bootstrap(gaps: np.ndarray, images: np.ndarray, resamples: int = 10_000) -> tuple[float, float, float]:
    """Returns a mean difference in per cent and its 95 % interval, over seeds and classes drawn anew.

    Args:
        gaps: by how many images one method finds more of a class than another, (seeds, classes).
        images: of every class, (classes,).
    """
    seeds, classes = _draws(*gaps.shape, resamples)
    differences = 100 * (seeds @ gaps * classes).sum(axis=1) / (classes @ images) / len(gaps)
    low, high = np.quantile(differences, (0.025, 0.975))
    return 100 * gaps.sum() / images.sum() / len(gaps), low, high


@lru_cache(maxsize=4)  # a page has many intervals of the same seeds and classes
def _draws(seeds: int, classes: int, resamples: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns how often each seed and each class is in each sample."""
    draw = np.random.default_rng(0)
    of_seeds, of_classes = (draw.multinomial(n, np.full(n, 1 / n), resamples) for n in (seeds, classes))
    return of_seeds, of_classes
