"""What a step of every supported loss costs, and which fit at all, beside PML's ``CrossBatchMemory``.

Forward and backward against a full memory, with no miner and with the loss's usual one, each case in a
process of its own whose memory is limited. Steps of ``SupConLoss`` are taken in turn with the case's, so that
a machine that slows down slows both.

    python -m benchmarks.cost losses --losses SupConLoss ContrastiveLoss --rows 1024 60000
    python -m benchmarks.cost losses --classes 10 --rows 60000 --memories XBNWrapper

Writes ``loss_cost_<device>.csv`` and ``.md`` to ``benchmarks/results``. A case that the CSV holds
is not measured again; delete its line, or the file. Where a memory does not fit, or takes too long, larger
ones are not tried.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tqdm import tqdm

from benchmarks.cost.harness import DEVICE
from benchmarks.cost.loss_case import LOSSES, USUAL_MINERS, Case
from benchmarks.cost.losses_page import FITS, NO_FIT, Results, page
from benchmarks.cost.machine import describe_fully
from benchmarks.engine.command_line import existing_device
from benchmarks.engine.results import RESULTS, read_runs, write_csv
from benchmarks.engine.settings import Positive, among, check
from benchmarks.engine.trial import at_most

_OUT_OF_MEMORY = re.compile(
    "MemoryError|out ?of ?memory|allocate memory|not enough memory|bad_alloc|size calculation overflowed",
    re.I,
)


@dataclass(frozen=True)
class Settings:
    """What is measured, and how."""

    losses: Annotated[tuple[str, ...], among(LOSSES)] = tuple(LOSSES)
    miners: tuple[Literal["none", "usual"], ...] = ("none", "usual")
    classes: tuple[Literal["n/10", "10"], ...] = ("n/10",)  # of n rows
    rows: tuple[int, ...] = (1_024, 8_192, 60_000, 250_000)
    memories: tuple[Literal["XBNWrapper", "CrossBatchMemory"], ...] = ("XBNWrapper", "CrossBatchMemory")
    repeats: Positive = 5  # steps at most, after warm-up
    time_limit: float = 20  # seconds of one step
    memory_limit: float = 8  # GB beyond what the libraries take
    threads: Positive = 1
    device: str = DEVICE
    output: Path = RESULTS

    def __post_init__(self) -> None:
        check(self)


def planned(settings: Settings) -> Iterator[Case]:
    """Yields the cases; those that differ in rows alone follow each other, the smallest first."""
    kinds = itertools.product(settings.losses, settings.miners, settings.classes, settings.memories)
    for loss, miner, classes, memory in kinds:
        name = USUAL_MINERS[loss] if miner == "usual" else miner
        rows = sorted(settings.rows)
        for number in rows[: at_most(len(rows))]:
            yield Case(loss, name, classes, memory, number)


def measured(case: Case, conditions: dict[str, Any]) -> dict[str, Any]:
    """Measures a case in a process of its own, and returns the outcome, with the figures if it fits."""
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.cost.loss_case",
            json.dumps({"case": case._asdict()} | conditions),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(conditions["threads"])},
    )
    if ended.returncode == -signal.SIGINT:
        raise KeyboardInterrupt
    known: dict[str, Any] = {}
    for line in ended.stdout.splitlines():
        known |= json.loads(line)
    if known:  # even if it was ended later, by a step of SupConLoss, say
        return {"outcome": FITS} | known
    if ended.returncode == -signal.SIGALRM:
        return {"outcome": f"over {conditions['time_limit_s']:g} s"}
    if ended.returncode == -signal.SIGKILL or _OUT_OF_MEMORY.search(ended.stderr):
        return {"outcome": NO_FIT}
    last = ended.stderr.strip().splitlines()[-1:] or [f"exit status {ended.returncode}"]
    return {"outcome": f"fails: {last[0][:200]}"}


def _failure_of_smaller(case: Case, results: Results) -> dict[str, str] | None:
    """Returns the outcome of a smaller memory that does not fit or takes too long, if there is one."""
    for other, row in results.items():
        if other[:-1] == case[:-1] and other.rows < case.rows and row["outcome"].startswith((NO_FIT, "over")):
            return {"outcome": row["outcome"]}
    return None


def main(settings: tyro.conf.OmitArgPrefixes[Settings]) -> None:
    """Measures all cases of a grid."""
    device = existing_device(settings.device)
    machine = describe_fully(device, settings.threads)
    conditions = {
        "device": settings.device,
        "threads": settings.threads,
        "repeats": settings.repeats,
        "time_limit_s": settings.time_limit,
        "memory_limit_gb": settings.memory_limit,
    }
    path = settings.output / f"loss_cost_{device.type}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    results = dict(read_runs(Case, path))
    bar = tqdm([case for case in planned(settings) if case not in results], unit="case")
    for case in bar:
        bar.set_postfix_str(f"{case.memory}, {case.loss}, {case.miner}, {case.rows} rows")
        outcome = _failure_of_smaller(case, results) or measured(case, conditions)
        line = case._asdict() | conditions | outcome | machine
        results[case] = {name: str(value) for name, value in line.items()}
        write_csv([results[case] for case in sorted(results)], path)
    if bar.total:
        path.with_suffix(".md").write_text(page(results))
    print(f"{path} and its table are written" if bar.total else f"{path} holds all of it")
