"""Which memory helps when, where none does, and by how much, on Glyphs.

    python -m benchmarks.study --regimes fast slow    (204 runs, three hours on two cores)
    python -m benchmarks.study --regimes "emoji, 60 epochs"    (on Emoji, whose images lie in --emoji)
    python -m benchmarks.study              (all runs)
    python -m benchmarks.study --report     (rebuilds the page from the CSV files)

Writes ``study_runs.csv`` (one row per run), ``study_epochs.csv`` (accuracy along the way) and
``study_classes.csv`` (hits by class, of a pretrained network) to ``benchmarks/results``, and the page.
The same line goes on where it was stopped: a run that ``study_runs.csv`` holds is not repeated, one that
was under way goes on from the last epoch that it has saved. One program at a time may write to a folder.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from benchmarks.engine.command_line import errors_in_one_line
from benchmarks.engine.processes import in_processes
from benchmarks.engine.results import RESULTS, append_csv, read_csv
from benchmarks.engine.settings import Positive, among, check
from benchmarks.engine.trial import at_most
from benchmarks.study.cases import REGIMES, Case, cases
from benchmarks.study.data import BY_CLASS, BY_EPOCH, RUNS
from benchmarks.study.report import write_report
from benchmarks.study.run import EMOJI_ROOT, checkpoint_path, train, train_warm_start, warm_start_path

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
    classes: Positive | None = None  # of each half, to try it out
    emoji: Path = EMOJI_ROOT  # folder of the unpacked packages emoji-datasource-apple and so on
    warm_starts: Path = WARM_STARTS  # and what is left of runs that were stopped
    output: Path = RESULTS

    def __post_init__(self) -> None:
        check(self)


def done(path: Path) -> set[Case]:
    """Returns the runs that are finished."""
    return {Case.from_row(row) for row in read_csv(path)}


def save(case: Case, outcome: dict[str, Any], folder: Path) -> None:
    """Adds a run to the CSV files, its own line last: until that is there, the run is not done."""
    key = {name: str(value) for name, value in asdict(case).items()}
    append_csv([{**key, **row} for row in outcome["epochs"]], folder / BY_EPOCH)
    if "classes" in outcome:
        append_csv([{**key, **outcome["classes"]}], folder / BY_CLASS)
    append_csv([{**key, **outcome["result"]}], folder / RUNS)


def run(todo: list[Case], settings: Settings) -> None:
    """Trains the warm starts that are missing, then the runs."""
    classes, folder = settings.classes, settings.output
    folder.mkdir(parents=True, exist_ok=True)
    warm_starts = settings.warm_starts / ("all" if classes is None else f"{classes}-classes")
    starts = {warm_start_path(case, warm_starts): case for case in todo if not case.is_from_random_weights}
    missing = [(case, warm_starts, classes) for path, case in starts.items() if not path.exists()]
    for _ in in_processes(settings.jobs, train_warm_start, missing, "warm starts"):
        pass
    work = [(case, warm_starts, classes, settings.emoji) for case in todo]
    for (case, *_), outcome in in_processes(settings.jobs, train, work, "runs"):
        save(case, outcome, folder)
        checkpoint_path(case, warm_starts).unlink(missing_ok=True)


def main() -> None:
    with errors_in_one_line():
        settings = tyro.cli(Settings, prog="python -m benchmarks.study", description=__doc__)
    if not settings.report:
        finished = done(settings.output / RUNS)
        todo = [
            case
            for case in cases()
            if case not in finished and case.regime in settings.regimes and case.name in settings.methods
        ]
        with errors_in_one_line():
            run(todo[: at_most(settings.limit or len(todo))], settings)
    write_report(settings.output)
    print(f"{settings.output / 'study.md'}, and its CSV files are written")


if __name__ == "__main__":
    main()
