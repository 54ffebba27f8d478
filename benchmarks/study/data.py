"""The study's CSV files, read, and what is computed from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.stats import t as student

from benchmarks.engine.results import read_csv
from benchmarks.study.cases import Case, cases

RUNS, CURVES, AGES, BY_EPOCH = "study_runs.csv", "study_curves.csv", "study_ages.csv", "study_epochs.csv"
Row = dict[str, str]
Setting = tuple[int, float, str, str]


class Difference(NamedTuple):
    """Of two methods, paired by seed.

    Attributes:
        gaps: one per seed; not empty.
    """

    gaps: list[float]

    def __str__(self) -> str:
        interval = "one seed" if self.half_width is None else f"± {self.half_width:.1f}"
        return f"{self.mean:+.1f} ({interval})"

    @property
    def mean(self) -> float:
        return fmean(self.gaps)

    @property
    def half_width(self) -> float | None:
        """Of the 95 % interval of the mean (Student's t); None for a single seed."""
        if len(self.gaps) == 1:
            return None
        width = student.ppf(0.975, len(self.gaps) - 1) * stdev(self.gaps) / len(self.gaps) ** 0.5
        return float(width)

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies on one side of zero, else 0."""
        if self.half_width is None or abs(self.mean) <= self.half_width:
            return 0
        return 1 if self.mean > 0 else -1


class Study:
    """What has been measured so far.

    Args:
        folder: of the CSV files that the study writes.

    Raises:
        FileNotFoundError: it has not written any.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / RUNS).exists():
            raise FileNotFoundError(f"there is no {folder / RUNS}: run python -m benchmarks.study first")
        self.runs = {Case.of(row): row for row in read_csv(folder / RUNS)}
        self.curves = _by_case(read_csv(folder / CURVES))
        self.ages = _by_case(read_csv(folder / AGES))
        self.epochs = _by_case(read_csv(folder / BY_EPOCH))
        self.planned = list(cases())

    def methods(self, setting: Setting) -> list[str]:
        """Names of the methods measured in a setting, in the order of the plan."""
        found = {case.name for case in self.runs if _belongs(case, setting)}
        return [name for name in dict.fromkeys(case.name for case in self.planned) if name in found]

    def settings(self, regime: str, norm: str | None = None) -> list[Setting]:
        """Settings of a regime in which there is something to compare with."""
        of_regime = dict.fromkeys(
            case.setting
            for case in self.planned
            if case.regime == regime and case.memory_ratio and norm in (None, case.norm)
        )
        return [setting for setting in of_regime if len(self.methods(setting)) > 1]

    def values(self, name: str, setting: Setting, figure: str) -> dict[int, float]:
        """The figure of every seed that has it."""
        return {
            case.seed: float(row[figure])
            for case, row in self.runs.items()
            if case.name == name and _belongs(case, setting) and row.get(figure)
        }

    def difference(self, name: str, other: str, setting: Setting, figure: str) -> Difference | None:
        """Of two methods; None where no seed has both."""
        return paired(self.values(name, setting, figure), self.values(other, setting, figure))

    def change(self, name: str, setting: Setting, from_setting: Setting, figure: str) -> Difference | None:
        """Of one method in two settings; None where no seed has both."""
        return paired(self.values(name, setting, figure), self.values(name, from_setting, figure))

    def curve(self, name: str, setting: Setting, figure: str) -> tuple[list[int], list[float]]:
        """A figure along the way, the mean over seeds: steps since the warm start, and values."""
        return _mean_by(self.curves, name, setting, "step", lambda row: float(row[figure]))

    def accuracy_by_epoch(self, name: str, setting: Setting, figure: str) -> tuple[list[int], list[float]]:
        """The mean over seeds: epochs, and values."""
        return _mean_by(self.epochs, name, setting, "epoch", lambda row: float(row[figure]))

    def staleness_by_age(self, name: str, setting: Setting, when: str) -> tuple[list[int], list[float]]:
        """Mean staleness, ``when`` being "before" or "after" adaptation, of rows from an age on.

        Ages of which there are few rows are left out: between the newest batch and an eighth of the memory
        the sampled batches fall only while it fills, and would tell of those steps instead of the age.
        """
        often = {}
        for case, rows in self.ages.items():
            most = max(int(row["rows"]) for row in rows)
            often[case] = [row for row in rows if int(row["rows"]) > most / 10]
        return _mean_by(often, name, setting, "age_from", lambda row: float(row[when]))


def paired(ours: dict[int, float], theirs: dict[int, float]) -> Difference | None:
    """The difference of two methods' values by seed; None where no seed has both."""
    gaps = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    return Difference(gaps) if gaps else None


def _mean_by(
    rows_of: dict[Case, list[Row]],
    name: str,
    setting: Setting,
    key: str,
    value: Callable[[Row], float],
) -> tuple[list[int], list[float]]:
    values: dict[int, list[float]] = {}
    for case, rows in rows_of.items():
        if case.name == name and case.setting == setting:
            for row in rows:
                values.setdefault(int(row[key]), []).append(value(row))
    keys = sorted(values)
    return keys, [fmean(values[k]) for k in keys]


def _belongs(case: Case, setting: Setting) -> bool:
    """Runs without a memory belong to the settings of all memory sizes."""
    batch_size, memory_ratio, norm, regime = case.setting
    return (batch_size, norm, regime) == (setting[0], *setting[2:]) and memory_ratio in (0, setting[1])


def _by_case(rows: list[Row]) -> dict[Case, list[Row]]:
    of_case: dict[Case, list[Row]] = {}
    for row in rows:
        of_case.setdefault(Case.of(row), []).append(row)
    return of_case
