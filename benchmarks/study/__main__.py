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

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.engine.processes import Processes
from benchmarks.engine.results import RESULTS, read_csv, write_csv
from benchmarks.study.cases import Case, cases
from benchmarks.study.data import AGES, BY_EPOCH, CURVES, RUNS
from benchmarks.study.report import write_report
from benchmarks.study.run import train, train_warm_start, warm_start_path

WARM_STARTS = Path("runs/study")


def done(path: Path) -> set[tuple[str, ...]]:
    """Keys of the runs that are finished."""
    return {Case.of(row).key for row in read_csv(path)}


def append(rows: list[dict[str, Any]], path: Path) -> None:
    """Adds rows to a CSV file, and columns where they bring new ones; numbers to six digits."""
    new = [
        {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()}
        for row in rows
    ]
    write_csv([*read_csv(path), *new], path)


def save(case: Case, outcome: dict[str, Any], folder: Path) -> None:
    """The run itself last: until it stands there, it is not done."""
    key = {name: str(value) for name, value in asdict(case).items()}
    append([{**key, **row} for row in outcome["curve"]], folder / CURVES)
    append([{**key, **row} for row in outcome["ages"]], folder / AGES)
    append([{**key, **row} for row in outcome["epochs"]], folder / BY_EPOCH)
    append([{**key, **outcome["result"]}], folder / RUNS)


def run(todo: list[Case], jobs: int, folder: Path, classes: int | None) -> None:
    """Trains the warm starts that are missing, then the runs, ``jobs`` at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    warm_starts = WARM_STARTS / ("all" if classes is None else f"{classes}-classes")
    starts = {warm_start_path(case, warm_starts): case for case in todo}
    missing = [(case, warm_starts, classes) for path, case in starts.items() if not path.exists()]
    with Processes(jobs) as processes:
        for _ in processes.run(train_warm_start, missing, "warm starts"):
            pass
        for (case, *_), outcome in processes.run(
            train, [(case, warm_starts, classes) for case in todo], "runs"
        ):
            save(case, outcome, folder)


def main() -> None:
    arguments = _parse()
    if not arguments.report:
        finished = done(arguments.output / RUNS)
        todo = [case for case in cases() if case.key not in finished]
        if arguments.regimes:
            todo = [case for case in todo if case.regime in arguments.regimes]
        if arguments.methods:
            todo = [case for case in todo if case.name in arguments.methods]
        run(todo[: arguments.limit], arguments.jobs, arguments.output, arguments.classes)
    write_report(arguments.output)
    print(f"{arguments.output / 'study.md'}, its pictures and its CSV files are written")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    names = list(dict.fromkeys(case.name for case in cases()))
    add("--report", action="store_true", help="train nothing")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: one per core)")
    add("--methods", nargs="+", choices=names, help="only these (default: all)")
    regimes = list(dict.fromkeys(case.regime for case in cases()))
    add("--regimes", nargs="+", choices=regimes, help="only these (default: all)")
    add("--limit", type=int, help="at most so many runs")
    add("--classes", type=int, help="only so many classes of each half, to try it out")
    add("--output", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
