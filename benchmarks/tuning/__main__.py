"""What is each memory worth when all get the same random search, which holds the defaults?

Every method gets the same draws, trained for a third of the epochs on two thirds of Emoji's training classes
and judged by MAP@R on the rest; the best five of each again with three seeds. The best of these is trained
in full on all training classes and tested once, on classes that no run of the study was scored on.

    python -m benchmarks.tuning --emoji data/emoji    (240, 60 and 20 runs; the same line goes on later)
    python -m benchmarks.tuning --report              (writes the study's page anew)

Writes ``tuning.csv`` to ``benchmarks/results``, and the page.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from benchmarks.engine.command_line import errors_in_one_line
from benchmarks.engine.processes import in_processes
from benchmarks.engine.results import RESULTS, append_csv
from benchmarks.engine.settings import Positive, check
from benchmarks.engine.trial import at_most
from benchmarks.study.data_sets import EMOJI_ROOT
from benchmarks.study.report import write_report
from benchmarks.tuning.results import AGAIN, FINAL, METHODS, RUNS, SEARCH, Trial, Tuning
from benchmarks.tuning.run import train
from benchmarks.tuning.space import draw

# Trains with each of the arguments; yields these and what came of them.
Runs = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]], str], Iterator[tuple[tuple[Any, ...], Any]]]


@dataclass(frozen=True)
class Settings:
    """What the search is, and where it goes."""

    draws: Positive = 60  # of every method, the defaults among them
    search_seeds: tuple[int, ...] = (1, 2, 3)  # of the five best; the search itself has 0
    seeds: tuple[int, ...] = (4, 5, 6, 7, 8)  # of the last test
    search_epochs: Positive = 20
    epochs: Positive = 60
    classes: Positive | None = None  # train and test on so many classes each, to try it out
    jobs: Positive = os.cpu_count() or 1  # runs at a time
    emoji: Path = EMOJI_ROOT  # folder of the packages
    output: Path = RESULTS
    report: bool = False  # train nothing

    def __post_init__(self) -> None:
        check(self)


def main() -> None:
    with errors_in_one_line():
        settings = tyro.cli(Settings, prog="python -m benchmarks.tuning", description=__doc__)
    if not settings.report:
        settings.output.mkdir(parents=True, exist_ok=True)
        with errors_in_one_line():
            search(settings, partial(in_processes, at_most(settings.jobs)))
    write_report(settings.output)
    print(f"{settings.output / 'study.md'} is written")


def search(settings: Settings, run: Runs) -> None:
    """Makes the runs of all stages that the CSV file does not hold; a stage follows from those before it."""
    for stage in (SEARCH, AGAIN, FINAL):
        tuning = Tuning(settings.output)
        todo = [trial for trial in planned(stage, settings, tuning) if trial not in tuning.runs]
        epochs = at_most(settings.epochs if stage == FINAL else settings.search_epochs)
        work = [(trial, epochs, settings.classes, settings.emoji) for trial in todo]
        for (trial, *_), row in run(train, work, stage):
            row = {**trial._asdict(), **asdict(draw(trial.number)), **row}
            append_csv([row], settings.output / RUNS)


def planned(stage: str, settings: Settings, tuning: Tuning) -> list[Trial]:
    """Returns a draw or a seed after the other, so that what is unfinished is as far for every method."""
    if stage == SEARCH:
        return [Trial(stage, m, n, 0) for n in range(settings.draws) for m in METHODS]
    if stage == AGAIN:
        ranked = {method: tuning.finalists(method) for method in METHODS}
        return [
            Trial(stage, m, n, seed) for seed in settings.search_seeds for m in METHODS for n in ranked[m]
        ]
    best = {method: tuning.best(method) for method in METHODS}
    return [Trial(stage, m, n, seed) for seed in settings.seeds for m, n in best.items() if n is not None]


if __name__ == "__main__":
    main()
