"""Trains on Han as declared_han.md of the study declares, one run after the other.

    python -m benchmarks.han.build     (once: fonts and images, into data/han)
    python -m benchmarks.han           (all runs, in their order; some minutes of a core each)
    python -m benchmarks.han --limit 5

Every run adds a row to ``han_runs.csv`` and its log to ``han_log.csv`` in ``benchmarks/results``. The same
line goes on where it was stopped: what these files hold is not run again. One program at a time may write to
a folder.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro

from benchmarks.engine.command_line import errors_in_one_line
from benchmarks.engine.results import RESULTS, append_csv, read_csv
from benchmarks.engine.settings import Positive, check
from benchmarks.han.cases import planned, read_cases
from benchmarks.han.train import run, train_on_glyphs

RUNS, LOG = "han_runs.csv", "han_log.csv"


@dataclass(frozen=True)
class Settings:
    """How many runs, and where they go."""

    root: Path = Path("data/han")  # folder of fonts and images
    output: Path = RESULTS
    weights: Path = Path("runs/han/glyphs.pt")  # of the network that has seen other characters
    limit: Positive | None = None  # at most so many runs
    threads: Positive = 1

    def __post_init__(self) -> None:
        check(self)


def main() -> None:
    with errors_in_one_line():
        settings = tyro.cli(Settings, prog="python -m benchmarks.han", description=__doc__)
        torch.set_num_threads(settings.threads)
        settings.output.mkdir(parents=True, exist_ok=True)
        train_all(settings)


def train_all(settings: Settings) -> None:
    """Makes the runs that are missing."""
    runs, made = settings.output / RUNS, 0
    finished = set(read_cases(read_csv(runs)))
    for case in planned(runs):
        if case in finished:
            continue
        if made == settings.limit:
            return
        weights = settings.weights if case.weights == "glyphs" else None
        if weights is not None and not weights.exists():
            train_on_glyphs(settings.root, weights)
        result, log = run(case, settings.root, weights)
        # The log first: a run whose row is there is complete.
        append_csv([{**asdict(case), **row} for row in log], settings.output / LOG)
        append_csv([{**asdict(case), **result}], runs)
        finished.add(case)
        made += 1
        print(
            os.getpid(),
            case,
            {name: result.get(name) for name in ("map_at_r", "cpu_minutes", "error")},
            flush=True,
        )


if __name__ == "__main__":
    main()
