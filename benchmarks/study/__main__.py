"""Which memory helps when, where none does, and by how much, on Glyphs.

    python -m benchmarks.study              (288 runs; the same line goes on later)
    python -m benchmarks.study --regimes fast slow    (204 of them, three hours on two cores)
    python -m benchmarks.study --report     (rebuilds tables and pictures from the CSV files)

Writes ``study_runs.csv`` (one row per run), ``study_curves.csv`` (what the diagnostics measured along the
way), ``study_ages.csv`` (staleness by the age of the rows) and ``study_epochs.csv`` (accuracy after every
epoch) to ``benchmarks/results``. A run that
``study_runs.csv`` holds is not repeated.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from benchmarks.engine.processes import in_processes
from benchmarks.engine.results import RESULTS, append_csv, read_csv
from benchmarks.engine.settings import Positive, among, check
from benchmarks.engine.trial import at_most
from benchmarks.study.cases import Case, cases
from benchmarks.study.data import AGES, BY_EPOCH, CURVES, RUNS
from benchmarks.study.report import write_report
from benchmarks.study.run import train, train_warm_start, warm_start_path

WARM_STARTS = Path("runs/study")
_METHODS = list(dict.fromkeys(case.name for case in cases()))


@dataclass(frozen=True)
class Settings:
    """Which runs, and where they go."""

    report: bool = False  # train nothing
    jobs: Positive = os.cpu_count() or 1  # runs at a time
    methods: Annotated[tuple[str, ...], among(_METHODS)] = tuple(_METHODS)
    regimes: tuple[Literal["fast", "slow", "converged"], ...] = ("fast", "slow", "converged")
    limit: Positive | None = None  # at most so many runs
    classes: Positive | None = None  # of each half, to try it out
    output: Path = RESULTS

    def __post_init__(self) -> None:
        check(self)


def done(path: Path) -> set[Case]:
    """The runs that are finished."""
    return {Case.of(row) for row in read_csv(path)}


def save(case: Case, outcome: dict[str, Any], folder: Path) -> None:
    """The run itself last: until it stands there, it is not done."""
    key = {name: str(value) for name, value in asdict(case).items()}
    append_csv([{**key, **row} for row in outcome["curve"]], folder / CURVES)
    append_csv([{**key, **row} for row in outcome["ages"]], folder / AGES)
    append_csv([{**key, **row} for row in outcome["epochs"]], folder / BY_EPOCH)
    append_csv([{**key, **outcome["result"]}], folder / RUNS)


def run(todo: list[Case], jobs: int, folder: Path, classes: int | None) -> None:
    """Trains the warm starts that are missing, then the runs, ``jobs`` at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    warm_starts = WARM_STARTS / ("all" if classes is None else f"{classes}-classes")
    starts = {warm_start_path(case, warm_starts): case for case in todo}
    missing = [(case, warm_starts, classes) for path, case in starts.items() if not path.exists()]
    for _ in in_processes(jobs, train_warm_start, missing, "warm starts"):
        pass
    work = [(case, warm_starts, classes) for case in todo]
    for (case, *_), outcome in in_processes(jobs, train, work, "runs"):
        save(case, outcome, folder)


def main() -> None:
    settings = tyro.cli(Settings, prog="python -m benchmarks.study", description=__doc__)
    if not settings.report:
        finished = done(settings.output / RUNS)
        todo = [
            case
            for case in cases()
            if case not in finished and case.regime in settings.regimes and case.name in settings.methods
        ]
        todo = todo[: at_most(settings.limit or len(todo))]
        run(todo, settings.jobs, settings.output, settings.classes)
    write_report(settings.output)
    print(f"{settings.output / 'study.md'}, its pictures and its CSV files are written")


if __name__ == "__main__":
    main()
