"""What a step of every supported loss costs, and which fit at all, beside PML's ``CrossBatchMemory``.

Forward and backward against a full memory, with no miner and with the loss's usual one, each case in a
process of its own whose memory is limited. Steps of ``SupConLoss`` are taken in turn with the case's, so that
a machine that slows down slows both.

    python -m benchmarks.loss_cost --losses SupConLoss ContrastiveLoss --rows 1024 60000
    python -m benchmarks.loss_cost --jobs 2
    python -m benchmarks.loss_cost --jobs 2 --classes 10 --rows 60000 --memories XBNWrapper

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
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from tqdm import tqdm

from benchmarks.engine.results import RESULTS
from benchmarks.engine.settings import Positive, among, check
from benchmarks.engine.trial import at_most
from benchmarks.loss_cost.case import LOSSES, Case, usual_miner
from benchmarks.loss_cost.report import FITS, NO_FIT, Results, key_of, read, write, write_report

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
    jobs: Positive = 1  # cases at a time
    threads: Positive = 1  # of each case
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    output: Path = RESULTS

    def __post_init__(self) -> None:
        check(self)


def planned(settings: Settings) -> Iterator[list[Case]]:
    """Cases that differ in rows alone, ascending."""
    kinds = itertools.product(settings.losses, settings.miners, settings.classes, settings.memories)
    for loss, miner, classes, memory in kinds:
        name = usual_miner(loss) if miner == "usual" else miner
        rows = sorted(settings.rows)
        yield [Case(memory, loss, name, classes, number) for number in rows[: at_most(len(rows))]]


def run(
    plan: list[list[Case]], conditions: dict[str, Any], jobs: int, results: Results, save: Callable[[], None]
) -> None:
    """Measures what ``results`` lacks, ``jobs`` cases at a time, and saves after each."""
    bar = tqdm(
        total=sum(key_of(asdict(case)) not in results for cases in plan for case in cases), unit="case"
    )
    lock, is_stopped = threading.Lock(), threading.Event()

    def run_all(cases: list[Case]) -> None:
        smaller: dict[str, str] = {}
        for case in cases:
            key = key_of(asdict(case))
            if key not in results:
                outcome = _inferred(smaller) or _measured(case, conditions)
                if is_stopped.is_set():
                    return
                line = asdict(case) | conditions | outcome
                with lock:
                    results[key] = {name: str(value) for name, value in line.items()}
                    save()
                    bar.set_postfix_str(f"{case.memory}, {case.loss}, {case.miner}, {case.rows} rows")
                    bar.update()
            smaller = results[key]

    with bar, ThreadPoolExecutor(jobs) as pool:
        try:
            for future in [pool.submit(run_all, cases) for cases in plan]:
                future.result()
        except BaseException:
            is_stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _inferred(smaller: dict[str, str]) -> dict[str, Any] | None:
    """The outcome of a case of which a smaller one was not to be had."""
    if smaller.get("outcome", FITS) == FITS or smaller["outcome"].startswith("fails"):
        return None
    return {"outcome": smaller["outcome"], "as_with_rows": smaller.get("as_with_rows") or smaller["rows"]}


def _measured(case: Case, conditions: dict[str, Any]) -> dict[str, Any]:
    threads = str(conditions["threads"])
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.loss_cost.case", json.dumps({"case": asdict(case)} | conditions)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": threads},
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


def main() -> None:
    settings = tyro.cli(Settings, prog="python -m benchmarks.loss_cost", description=__doc__)
    conditions = {
        "device": settings.device,
        "threads": settings.threads,
        "repeats": settings.repeats,
        "time_limit_s": settings.time_limit,
        "memory_limit_gb": settings.memory_limit,
    }
    path = settings.output / f"loss_cost_{torch.device(settings.device).type}.csv"
    results = read(path)
    try:
        run(list(planned(settings)), conditions, settings.jobs, results, lambda: write(results, path))
    finally:
        if results:
            write_report(results, path)
    print(f"{path} and its table are written")


if __name__ == "__main__":
    main()
