"""Trains the runs of a list, as many at a time as are the fastest."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.cost.machine import describe
from benchmarks.engine.results import read_csv
from benchmarks.on_gpu.deadline import Deadline
from benchmarks.on_gpu.table import Table
from benchmarks.on_gpu.train.data import PreparedSource
from benchmarks.on_gpu.train.workers import Failure, Workers
from benchmarks.study.budget import Budget
from benchmarks.study.cases import Case, read_cases
from benchmarks.study.files import RUNS, done, save
from benchmarks.study.run import Pace, begin, checkpoint_path, train

# In the order in which they are trained: the baseline of fine-tuning, then the runs that choose its settings.
LISTS = (
    Path(__file__).with_name("baseline.csv"),
    Path(__file__).parents[2] / "study" / "lists" / "select.csv",
)
PROCESSES_FILE = "gpu_processes.csv"
_COLUMNS = ("processes", "steps_per_second", "case", "dtype", "device", "driver", "torch")
_COUNTS, _TINY_COUNTS = (1, 2, 4, 8, 16), (1, 2)
_GAIN = 1.05  # more processes have to be faster by this factor
_SECONDS, _TINY_SECONDS = 3.0, 0.3  # in which steps are counted
_LEAST = 15.0  # seconds, with fewer of which nothing is begun
_TO_START = 120.0  # seconds, in which a process loads torch and the data
_UNFINISHED = "unfinished"  # folder of the runs that were stopped
_TINY_RUNS = 8
_LOOK_EVERY = 2.0  # seconds


def run(
    folder: Path,
    device: torch.device,
    deadline: Deadline,
    is_tiny: bool,
    data: Path | None,
    lists: Sequence[Path] = LISTS,
) -> int:
    """Adds the runs that are not done yet to the study's CSV files; returns how many have failed.

    Runs that are under way at the end go on from their last checkpoint the next time.
    """
    finished = done(folder / RUNS)
    listed = [case for path in lists for case in read_cases(path)]
    if is_tiny:
        listed = [replace(case, regime=str(Budget("pretrained", 1))) for case in listed[:_TINY_RUNS]]
    todo = [case for case in dict.fromkeys(listed) if case not in finished]
    if not todo:
        return 0
    if not deadline.allows(_LEAST):
        print(f"train: no time is left for {len(todo)} runs; the same command goes on")
        return 0
    source, machine = PreparedSource(data, str(device)), {"dtype": _dtype(device), **describe(device)}
    counts = _TINY_COUNTS if is_tiny else [n for n in _COUNTS if n <= (os.cpu_count() or 1)]
    table = Table(folder / PROCESSES_FILE, _COLUMNS, ("processes", "device", "torch"))
    known = _fastest(folder, machine)
    with Workers(known or max(counts)) as workers:
        everyone = set(range(len(workers)))
        for worker in everyone:
            workers.tell(worker, take_steps, todo[0], source, 0.0)
        started = workers.all_answers(everyone, min(_TO_START, deadline.seconds_left))
        if len(started) < len(workers) or any(isinstance(x, Failure) for x in started.values()):
            print(f"train: of {len(workers)} processes not all have started: {started}")
            return 1
        if not known:
            seconds = _TINY_SECONDS if is_tiny else _SECONDS
            _measure_counts(workers, counts, todo[0], source, seconds, table, machine)
            workers.keep(_fastest(folder, machine) or 1)
        return _train_all(workers, todo, source, folder, deadline, machine)


def _dtype(device: torch.device) -> str:
    """Returns what training computes in, by the defaults of torch."""
    has_tf32 = device.type == "cuda" and torch.backends.cudnn.allow_tf32
    return "float32, convolutions in TF32" if has_tf32 else "float32"


def take_steps(case: Case, source: PreparedSource, seconds: float) -> int:
    """Returns how many steps of a run are taken in so long; one at least."""
    training = begin(case, Path(), None, source)
    ends, steps = time.monotonic() + seconds, 0

    def stop() -> bool:
        nonlocal steps
        steps += 1
        return time.monotonic() >= ends

    while training.train_epoch(stop=stop) and time.monotonic() < ends:
        pass
    return steps


def _measure_counts(
    workers: Workers,
    counts: Sequence[int],
    case: Case,
    source: PreparedSource,
    seconds: float,
    table: Table,
    machine: dict[str, str],
) -> None:
    """Counts the steps of more and more processes, until more of them are no faster."""
    best = 0.0
    for count in counts:
        for worker in range(count):
            workers.tell(worker, take_steps, case, source, seconds)
        answers = workers.all_answers(set(range(count)), _TO_START)
        rate = sum(x for x in answers.values() if isinstance(x, int)) / seconds
        title = f"{case.method}, batch {case.batch_size}"
        table.append({"processes": count, "steps_per_second": rate, "case": title, **machine})
        if rate < _GAIN * best or len(answers) < count:
            return
        best = rate


def _fastest(folder: Path, machine: dict[str, str]) -> int:
    """Returns the number of processes that was the fastest on this machine; 0 if none was measured."""
    rates = {
        int(row["processes"]): float(row["steps_per_second"])
        for row in read_csv(folder / PROCESSES_FILE)
        if all(row[name] == machine[name] for name in ("device", "torch"))
    }
    return max(rates, key=lambda count: rates[count], default=0)


def _train_all(
    workers: Workers,
    todo: list[Case],
    source: PreparedSource,
    folder: Path,
    deadline: Deadline,
    machine: dict[str, str],
) -> int:
    unfinished, pace = folder / _UNFINISHED, Pace(saved_after=10)
    failed, seconds_of = 0, dict[int, float]()  # the longest run by batch size
    waiting = list(todo)
    at_work: dict[int, tuple[Case, float]] = {}
    while deadline.seconds_left > 0 and (at_work or waiting):
        for worker in set(range(len(workers))) - at_work.keys():
            if waiting and deadline.allows(seconds_of.get(waiting[0].batch_size, 0.0)):
                case = waiting.pop(0)
                workers.tell(worker, train, case, unfinished, None, source, pace)
                at_work[worker] = case, time.monotonic()
        if not at_work:
            break
        answers = workers.answers(set(at_work), min(_LOOK_EVERY, deadline.seconds_left))
        for worker, outcome in answers:
            case, began = at_work.pop(worker)
            seconds = time.monotonic() - began
            seconds_of[case.batch_size] = max(seconds, seconds_of.get(case.batch_size, 0.0))
            if isinstance(outcome, Failure):
                outcome = {"result": {"error": outcome.message}, "epochs": []}
            failed += "error" in outcome["result"]
            _save(case, outcome, folder, machine | {"processes": str(len(workers))})
            checkpoint_path(case, unfinished).unlink(missing_ok=True)
    left = len(waiting) + len(at_work)
    if left:
        print(f"train: no time is left for {left} runs; the same command goes on")
    return failed


def _save(case: Case, outcome: dict[str, Any], folder: Path, machine: dict[str, str]) -> None:
    """Adds a run to the study's files, every row with the machine."""
    outcome["result"] |= machine
    outcome["epochs"] = [row | machine for row in outcome["epochs"]]
    if "classes" in outcome:
        outcome["classes"] |= machine
    save(case, outcome, folder)
