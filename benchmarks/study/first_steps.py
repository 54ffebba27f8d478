"""What the first measurements of a run with a memory come to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import fmean
from typing import NamedTuple

from benchmarks.engine.history import Tables

MEASUREMENTS = 7


class FirstSteps(NamedTuple):
    """Means over the first measurements with rows of earlier batches.

    Attributes:
        push_share: how much of the gradient all anchors have in common, from 0 to 1.
        displacement: of the memory's mean from the anchors'.
        positives: valid positive pairs with rows of earlier batches, per one within the batch.
    """

    push_share: float
    displacement: float
    positives: float


def means_of(measurements: Iterable[Sequence[float]]) -> FirstSteps:
    """Of the push's share, the displacement, and valid positives from memory and batch."""
    share, displacement, from_memory, from_batch = (fmean(x) for x in zip(*measurements, strict=True))
    return FirstSteps(share, displacement, from_memory / max(1.0, from_batch))


def first_steps(tables: Tables) -> FirstSteps | None:
    """Of a run's tables as its diagnostics fill them; None where nothing was measured."""
    rows = zip(tables.get("push", []), tables.get("valid_pairs", []), strict=False)
    first = list(islice((push | pairs for push, pairs in rows if push["displacement"]), MEASUREMENTS))
    names = ("share", "displacement", "positives_from_memory", "positives_from_batch")
    return means_of([row[name] for name in names] for row in first) if first else None
