"""What tuning came to, from its CSV files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.engine.intervals import Difference, paired
from benchmarks.engine.results import read_csv
from benchmarks.tuning.space import LOSSES

METHODS = ("no-xbm", "xbm", "xbm-star", "xbn")
SEARCH, TESTS = "tuning_search.csv", "tuning_tests.csv"
Row = dict[str, str]

_RATE = 1e-3  # the middle of the learning rates, which are logarithmic


def _part(loss: str, is_fast: bool | None = None) -> Callable[[Row], bool]:
    return lambda row: row["loss"] == loss and is_fast in (None, float(row["learning_rate"]) >= _RATE)


# Parts of the space in which memories fare differently, and which of the configurations they hold.
PARTS: dict[str, Callable[[Row], bool]] = {
    **{loss: _part(loss) for loss in LOSSES},
    f"contrastive, learning rate < {_RATE:g}": _part("contrastive", is_fast=False),
    f"contrastive, ≥ {_RATE:g}": _part("contrastive", is_fast=True),
}


class Tuning:
    """The search of every method, and the tests of its best configuration.

    Args:
        folder: of the CSV files.
    """

    def __init__(self, folder: Path) -> None:
        self.search, self.tests = read_csv(folder / SEARCH), read_csv(folder / TESTS)

    def found(self, method: str) -> list[Row]:
        """Its configurations, the best of the search first."""
        return sorted(
            (row for row in self.search if row["method"] == method), key=lambda row: -float(row["map_at_r"])
        )

    def tested(self, method: str, figure: str) -> dict[int, float]:
        """Of its best configuration, by seed."""
        best = [row["number"] for row in self.found(method)[:1]]
        return {
            int(row["seed"]): float(row[figure])
            for row in self.tests
            if row["method"] == method and [row["number"]] == best
        }

    def difference(self, method: str, other: str, figure: str) -> Difference | None:
        """Of two methods' tests, paired by seed; None where no seed has both."""
        return paired(self.tested(method, figure), self.tested(other, figure))

    def of_configurations(
        self, method: str, other: str, part: Callable[[Row], bool] = lambda row: True
    ) -> Difference | None:
        """Of two methods' searches in MAP@R, paired by configuration; of a part of the space, or of all."""
        return paired(
            *(
                {int(row["number"]): float(row["map_at_r"]) for row in self.found(name) if part(row)}
                for name in (method, other)
            )
        )
