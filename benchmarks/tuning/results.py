"""What tuning came to, from its CSV file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.engine.intervals import Difference, paired
from benchmarks.engine.results import read_runs

METHODS = ("no-xbm", "xbm", "xbm-star", "xbn")
SEARCH, AGAIN, FINAL = "search", "again", "final"
RUNS = "tuning.csv"
FIGURE = "map_at_r"
FINALISTS = 5
_DECLARED: dict[str, dict[str, list[Any]]] = json.loads(
    Path(__file__).with_name("subgroups.json").read_text(encoding="utf-8")
)["subgroups"]
Row = dict[str, str]
Part = Callable[[Row], bool]


class Trial(NamedTuple):
    """A run: ``stage`` says how long and on which classes; the others what and with which seed."""

    stage: str
    method: str
    number: int
    seed: int


def _part(bounds: dict[str, list[Any]]) -> Part:
    """Draws whose value is among those named or, of numbers, from the first up and below the second."""
    return lambda row: all(
        row[name] in of if isinstance(of[0], str) else of[0] <= float(row[name]) < of[1]
        for name, of in bounds.items()
    )


SUBGROUPS: dict[str, Part] = {name: _part(bounds) for name, bounds in _DECLARED.items()}


class Tuning:
    """The runs of all stages."""

    def __init__(self, folder: Path) -> None:
        self.runs = dict(read_runs(Trial, folder / RUNS))

    def searched(self, method: str) -> dict[int, Row]:
        """Returns its draws by number."""
        return {t.number: row for t, row in self.runs.items() if (t.stage, t.method) == (SEARCH, method)}

    def finalists(self, method: str) -> list[int]:
        """Returns the best of the search, best first."""
        found = self.searched(method)
        return sorted(found, key=lambda number: -float(found[number][FIGURE]))[:FINALISTS]

    def best(self, method: str) -> int | None:
        """Returns the best of those that were trained again, by their mean; None where none was."""
        means = {number: self.seeds(AGAIN, method, number) for number in self.finalists(method)}
        trained = {number: fmean(of.values()) for number, of in means.items() if of}
        return max(trained, key=lambda number: trained[number]) if trained else None

    def seeds(self, stage: str, method: str, number: int | None, figure: str = FIGURE) -> dict[int, float]:
        """Returns the figure of every seed."""
        return {
            t.seed: float(row[figure])
            for t, row in self.runs.items()
            if (t.stage, t.method, t.number) == (stage, method, number)
        }

    def tested(self, method: str, figure: str) -> dict[int, float]:
        """Returns the figures of the best on the classes that were kept back, by seed."""
        return self.seeds(FINAL, method, self.best(method), figure)

    def draw_difference(self, method: str, other: str, part: Part = lambda row: True) -> Difference | None:
        """Returns the difference of two methods, paired by draw, in a part of the space or in all."""
        ours, theirs = (
            {n: float(row[FIGURE]) for n, row in self.searched(name).items() if part(row)}
            for name in (method, other)
        )
        return paired(ours, theirs)
