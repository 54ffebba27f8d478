"""The study's CSV files, as runs are added to them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.engine.results import append_csv, read_runs
from benchmarks.study.cases import Case

RUNS, BY_EPOCH, BY_CLASS = "study_runs.csv", "study_epochs.csv", "study_classes.csv"


def done(path: Path) -> set[Case]:
    """Returns the runs that are finished."""
    return {case for case, _ in read_runs(Case, path)}


def save(case: Case, outcome: dict[str, Any], folder: Path) -> None:
    """Adds a run to the CSV files, its own line last: until that is there, the run is not done."""
    key = {name: str(value) for name, value in asdict(case).items()}
    append_csv([{**key, **row} for row in outcome["epochs"]], folder / BY_EPOCH)
    if "classes" in outcome:
        append_csv([{**key, **outcome["classes"]}], folder / BY_CLASS)
    append_csv([{**key, **outcome["result"]}], folder / RUNS)
