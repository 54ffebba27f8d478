"""What is each memory worth when all get the same random search, and its best is trained for longer?

Every method gets the same random configurations, trained with a third of the epochs on two thirds of the
training classes of Glyphs and judged by MAP@R on the rest. The best of each is trained for three times
as long on all training classes with new seeds, and tested once.

    python -m benchmarks.tuning             (96 runs, then 20 longer ones; the same line goes on later)
    python -m benchmarks.tuning --report    (writes the study's page anew)

Writes ``tuning_search.csv`` and ``tuning_tests.csv`` to ``benchmarks/results``. Optuna keeps the search in
``runs/tuning/search.db``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import tyro

from benchmarks.engine.processes import in_processes
from benchmarks.engine.results import RESULTS, append_csv, read_csv, write_csv
from benchmarks.engine.settings import Positive, check
from benchmarks.engine.trial import at_most
from benchmarks.study.report import write_report
from benchmarks.tuning.results import METHODS, SEARCH, TESTS
from benchmarks.tuning.run import train
from benchmarks.tuning.space import Configuration, draw

_SEARCH_SEED = 0
# Trains with each of the arguments; yields these and what came of them.
Runs = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]], str], Iterator[tuple[tuple[Any, ...], Any]]]


@dataclass(frozen=True)
class Settings:
    """What the search is, and where it goes."""

    configurations: Positive = 24  # of every method
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)  # of the best one's long runs
    search_epochs: Positive = 10
    epochs: Positive = 30
    classes: Positive | None = None  # train and test on so many classes each, to try it out
    jobs: Positive = os.cpu_count() or 1  # runs at a time
    store: Path = Path("runs/tuning/search.db")
    output: Path = RESULTS
    report: bool = False  # train nothing

    def __post_init__(self) -> None:
        check(self)


def main() -> None:
    settings = tyro.cli(Settings, prog="python -m benchmarks.tuning", description=__doc__)
    settings = replace(
        settings,
        configurations=at_most(settings.configurations),
        seeds=settings.seeds[: at_most(len(settings.seeds))],
        search_epochs=at_most(settings.search_epochs),
        epochs=at_most(settings.epochs),
    )
    if not settings.report:
        for folder in (settings.store.parent, settings.output):
            folder.mkdir(parents=True, exist_ok=True)
        run = partial(in_processes, at_most(settings.jobs))
        test(settings, search(settings, run), run)
    write_report(settings.output)
    print(f"{settings.output / 'study.md'}, its pictures and its CSV files are written")


def search(settings: Settings, run: Runs) -> dict[str, Configuration]:
    """The best configuration of each method by validation MAP@R."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    length = f"{settings.search_epochs} epochs, {settings.classes or 'all'} classes"
    studies = {
        method: optuna.create_study(
            storage=f"sqlite:///{settings.store}",
            study_name=f"{method}, {length}",
            direction="maximize",
            load_if_exists=True,
        )
        for method in METHODS
    }
    trials, work = {}, []
    for method, study in studies.items():
        for stopped in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):  # by an interruption
            study.tell(stopped.number, state=optuna.trial.TrialState.FAIL)
        for number in sorted(set(range(settings.configurations)) - _finished(study).keys()):
            # Seeded by number: all methods get the same draws, whatever was interrupted.
            study.sampler = optuna.samplers.RandomSampler(seed=number)
            trial = trials[method, number] = study.ask()
            configuration = draw(trial, number)
            trial.set_user_attr("number", number)
            work.append((method, configuration, _SEARCH_SEED, settings.search_epochs, settings.classes, True))
    for (method, configuration, *_), row in run(train, work, "search"):
        trial = trials[method, configuration.number]
        trial.set_user_attr("row", row)
        studies[method].tell(trial, row["map_at_r"])
        write_csv(_rows(studies), settings.output / SEARCH)
    return {
        method: draw(optuna.trial.FixedTrial(study.best_params), study.best_trial.user_attrs["number"])
        for method, study in studies.items()
    }


def _finished(study: optuna.Study) -> dict[int, optuna.trial.FrozenTrial]:
    trials = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    return {trial.user_attrs["number"]: trial for trial in trials}


def _rows(studies: dict[str, optuna.Study]) -> list[dict[str, Any]]:
    return [
        {"method": method, "number": number, **trial.params, **trial.user_attrs["row"]}
        for method, study in studies.items()
        for number, trial in sorted(_finished(study).items())
    ]


def test(settings: Settings, best: dict[str, Configuration], run: Runs) -> None:
    """Trains the best for longer, with what is not in the CSV file yet."""
    path = settings.output / TESTS
    done = {(row["method"], int(row["number"]), int(row["seed"])) for row in read_csv(path)}
    work = [
        (method, configuration, seed, settings.epochs, settings.classes, False)
        for seed in settings.seeds
        for method, configuration in best.items()
        if (method, configuration.number, seed) not in done
    ]
    for (method, configuration, seed, *_), row in run(train, work, "tests"):
        append_csv([{"method": method, "seed": seed, **asdict(configuration), **row}], path)


if __name__ == "__main__":
    main()
