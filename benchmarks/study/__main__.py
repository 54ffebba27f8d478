"""Which memory helps when, where none does, and by how much, on Glyphs.

    python -m benchmarks.study --regimes fast slow    (204 runs, three hours on two cores)
    python -m benchmarks.study --regimes "emoji, 60 epochs"    (on Emoji, whose images lie in --emoji)
    python -m benchmarks.study              (all runs)
    python -m benchmarks.study --cases benchmarks/study/fine_tuning.csv    (runs that a file lists)
    python -m benchmarks.study --report     (rebuilds the page from the CSV files)

Writes ``study_runs.csv`` (one row per run), ``study_epochs.csv`` (accuracy along the way) and
``study_classes.csv`` (hits by class, of a pretrained network) to ``benchmarks/results``, and the page.
A list of runs is a CSV file with the columns of `Case`. A run that fails has its error in ``study_runs.csv``.
The same line goes on where it was stopped: a run that ``study_runs.csv`` holds is not repeated, one that
was under way goes on from the last epoch that it has saved. One program at a time may write to a folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks.engine.command_line import errors_in_one_line
from benchmarks.engine.processes import in_processes
from benchmarks.engine.results import RESULTS
from benchmarks.engine.settings import Positive, among, check
from benchmarks.engine.trial import at_most
from benchmarks.study.cases import REGIMES, Case, cases, read_cases
from benchmarks.study.data_sets import EMOJI_ROOT, ICONS_ROOT, Roots
from benchmarks.study.files import RUNS, done, save
from benchmarks.study.report import write_report
from benchmarks.study.run import checkpoint_path, train, train_warm_start, warm_start_path

WARM_STARTS = Path("runs/study")
_METHODS = list(dict.fromkeys(case.name for case in cases()))


@dataclass(frozen=True)
class Settings:
    """Which runs, and where they go."""

    report: bool = False  # train nothing
    jobs: Positive = os.cpu_count() or 1  # runs at a time
    methods: Annotated[tuple[str, ...], among(_METHODS)] = tuple(_METHODS)
    regimes: Annotated[tuple[str, ...], among(REGIMES)] = REGIMES
    limit: Positive | None = None  # at most so many runs
    cases: Path | None = None  # CSV file that lists runs, which take the place of the study's own
    classes: Positive | None = None  # of each half, to try it out
    emoji: Path = EMOJI_ROOT  # folder of the unpacked packages emoji-datasource-apple and so on
    icons: Path = ICONS_ROOT  # folder of the unpacked packages of @iconify-json
    warm_starts: Path = WARM_STARTS  # and what is left of runs that were stopped
    output: Path = RESULTS

    def __post_init__(self) -> None:
        check(self)


def planned(settings: Settings) -> list[Case]:
    """Returns the runs of a list, or those of the study that the settings name."""
    if settings.cases is not None:
        return read_cases(settings.cases)
    return [case for case in cases() if case.regime in settings.regimes and case.name in settings.methods]


def run(todo: list[Case], settings: Settings) -> None:
    """Trains the warm starts that are missing, then the runs."""
    classes, folder = settings.classes, settings.output
    folder.mkdir(parents=True, exist_ok=True)
    warm_starts = settings.warm_starts / ("all" if classes is None else f"{classes}-classes")
    starts = {warm_start_path(case, warm_starts): case for case in todo if not case.is_from_random_weights}
    missing = [(case, warm_starts, classes) for path, case in starts.items() if not path.exists()]
    for _ in in_processes(settings.jobs, train_warm_start, missing, "warm starts"):
        pass
    roots = Roots(settings.emoji, settings.icons)
    work = [(case, warm_starts, classes, roots) for case in todo]
    for (case, *_), outcome in in_processes(settings.jobs, train, work, "runs"):
        save(case, outcome, folder)
        checkpoint_path(case, warm_starts).unlink(missing_ok=True)


def main() -> None:
    with errors_in_one_line():
        settings = tyro.cli(Settings, prog="python -m benchmarks.study", description=__doc__)
    if not settings.report:
        finished = done(settings.output / RUNS)
        with errors_in_one_line():
            todo = [case for case in planned(settings) if case not in finished]
            run(todo[: at_most(settings.limit or len(todo))], settings)
    write_report(settings.output)
    print(f"{settings.output / 'study.md'}, and its CSV files are written")


if __name__ == "__main__":
    main()
