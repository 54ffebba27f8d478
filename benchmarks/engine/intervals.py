"""Differences that are paired by seed, and their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student


class Difference(NamedTuple):
    """Gaps of two methods, paired by seed; not empty.

    ``pooled`` has their standard deviation and degrees of freedom by `pool`; None: by these gaps alone.
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


def pool(values: Mapping[str, dict[int, float]]) -> tuple[float, int] | None:
    """Returns standard deviation and degrees of freedom of the gap of any two methods, paired by seed.

    They are of what remains of all values by seed once every method and every seed has its mean, as in the
    analysis of variance; None where nothing does.
    """
    cells = [(method, seed, x) for method, by_seed in values.items() for seed, x in by_seed.items()]
    methods, seeds, found = map(np.array, zip(*cells, strict=True))
    design = np.hstack([x[:, None] == np.unique(x) for x in (methods, seeds)]).astype(float)
    means, _, rank, _ = np.linalg.lstsq(design, found, rcond=None)
    degrees = len(found) - int(rank)
    rest = float(np.square(found - design @ means).sum())
    return ((2 * rest / degrees) ** 0.5, degrees) if degrees else None


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
