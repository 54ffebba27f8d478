"""What the study has measured: its CSV files, and the differences and intervals computed from them."""

from __future__ import annotations

from collections.abc import Container
from itertools import takewhile
from pathlib import Path

import numpy as np

from benchmarks.engine.intervals import Difference, bootstrap, paired
from benchmarks.engine.results import read_runs
from benchmarks.study.cases import Case, cases
from benchmarks.study.files import BY_CLASS, BY_EPOCH, RUNS

Row = dict[str, str]
Setting = tuple[int, float, str, str]

# XBM as its paper has it: warmed up, and filled.
PUBLISHED = ("xbm+warm-up", "xbm+warm-up of an epoch")
_TENTH = 0.9  # where the last tenth of the epochs begins


class Study:
    """What has been measured so far.

    Attributes:
        all_runs: rows by run, those of lists beside the study's plan among them.
        runs, epochs: rows by run of the plan, which alone are in the study's tables.
        classes: hits and images of every test class by run, of all runs that noted them.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / RUNS).exists():
            raise FileNotFoundError(f"there is no {folder / RUNS}: run python -m benchmarks.study first")
        self.planned = list(cases())
        self.all_runs = dict(read_runs(Case, folder / RUNS))
        self.runs = {case: self.all_runs[case] for case in self.planned if case in self.all_runs}
        self.epochs: dict[Case, list[Row]] = {}
        for case, row in read_runs(Case, folder / BY_EPOCH):
            if case in self.runs:
                self.epochs.setdefault(case, []).append(row)
        self.classes = {
            case: [[int(x) for x in row[name].split()] for name in ("hits", "images")]
            for case, row in read_runs(Case, folder / BY_CLASS)
        }

    def methods(self, setting: Setting) -> list[str]:
        """Names of the methods measured in a setting, in the order of the plan."""
        found = {case.name for case in self.runs if _belongs(case, setting)}
        return [name for name in dict.fromkeys(case.name for case in self.planned) if name in found]

    def settings(self, regime: str) -> list[Setting]:
        """Settings of a regime in which there is something to compare with, in the order of the plan."""
        planned = dict.fromkeys(c.setting for c in self.planned if c.regime == regime and c.memory_ratio)
        return [setting for setting in planned if len(self.methods(setting)) > 1]

    def values(self, name: str, setting: Setting, figure: str = "recall_at_1") -> dict[int, float]:
        """Returns the figure of every seed that has it."""
        return {
            case.seed: float(row[figure])
            for case, row in self.runs.items()
            if case.name == name and _belongs(case, setting) and row.get(figure)
        }

    def differences(
        self, setting: Setting, baseline: str, figure: str = "recall_at_1"
    ) -> dict[str, Difference]:
        """Returns the differences of every method to a baseline, paired by seed."""
        theirs = self.values(baseline, setting, figure)
        found = {
            name: paired(self.values(name, setting, figure), theirs)
            for name in self.methods(setting)
            if name != baseline
        }
        return {name: difference for name, difference in found.items() if difference}

    def bootstrapped(self, name: str, other: str, setting: Setting) -> str | None:
        """Returns the difference in Recall@1, its interval over seeds and classes, and the number of seeds.

        None where hits were not noted by class.
        """
        ours, theirs = (
            {
                c.seed: self.classes[c]
                for c in self.runs.keys() & self.classes
                if c.name == of and _belongs(c, setting)
            }
            for of in (name, other)
        )
        seeds = sorted(ours.keys() & theirs.keys())
        if not seeds:
            return None
        gaps = np.array([np.subtract(ours[seed][0], theirs[seed][0]) for seed in seeds])
        mean, low, high = bootstrap(gaps, np.array(ours[seeds[0]][1]))
        return f"{mean:+.1f} ({low:+.1f} to {high:+.1f}; {len(seeds)})"

    def last_tenth(self, name: str, setting: Setting) -> list[float]:
        """Returns what the last tenth of the epochs added to Recall@1, in every run with noted epochs."""
        gains = []
        for case, rows in self.epochs.items():
            if case.name == name and _belongs(case, setting):
                last = int(rows[-1]["epoch"])
                before = [row for row in rows[:-1] if int(row["epoch"]) <= round(_TENTH * last)]
                gains += [float(rows[-1]["recall_at_1"]) - float(before[-1]["recall_at_1"])] if before else []
        return gains

    def stays_above(
        self, name: str, setting: Setting, seed: int, accuracy: float
    ) -> tuple[int, float] | None:
        """Returns the epoch from which Recall@1 stays as high to the end, and the minutes until then.

        The first epoch that is as high would be a maximum of noise. None if the last one is not; NaN for
        minutes of the processor that were not noted.
        """
        for case, rows in self.epochs.items():
            if case.name == name and case.seed == seed and _belongs(case, setting):
                above = list(takewhile(lambda row: float(row["recall_at_1"]) >= accuracy, reversed(rows)))
                if above:
                    epoch, minutes = int(above[-1]["epoch"]), self.runs[case].get("cpu_minutes")
                    return epoch, float(minutes or "nan") * epoch / int(rows[-1]["epoch"])
        return None


def published_in(methods: Container[str]) -> str | None:
    """Returns which of the methods is XBM as its paper has it; None if none is."""
    return next((name for name in PUBLISHED if name in methods), None)


def _belongs(case: Case, setting: Setting) -> bool:
    """Runs without a memory belong to the settings of all memory sizes."""
    batch_size, memory_ratio, norm, regime = case.setting
    return (batch_size, norm, regime) == (setting[0], *setting[2:]) and memory_ratio in (0, setting[1])
