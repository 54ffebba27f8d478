"""Comparisons that are interrupted and resumed, and the files that they write."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.engine.comparison import Comparison


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a file that is there."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def without_times(results: Path) -> list[dict[str, str]]:
    return [{name: value for name, value in row.items() if name != "step_ms"} for row in read_csv(results)]


def run_until(comparison: Comparison, folder: Path, *, resume: bool, kill_at: int) -> Comparison:
    """Runs a comparison that saves to ``folder``, and interrupts it before the step ``kill_at``."""
    taken = 0

    def progress(batches: Iterable[Any], *_: Any) -> Iterable[Any]:
        nonlocal taken
        for batch in batches:
            if taken == kill_at:
                raise KeyboardInterrupt
            yield batch
            taken += 1

    comparison.folder = folder
    if resume:
        comparison.resume()
    comparison.run(progress, folder.parent / "logs")
    return comparison
