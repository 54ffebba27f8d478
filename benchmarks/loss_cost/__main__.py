"""What a step of every supported loss costs, and which fit at all, beside PML's ``CrossBatchMemory``.

Forward and backward against a full memory, with no miner and with the loss's usual one, each case in a
process of its own whose memory is limited. Steps of ``SupConLoss`` are taken in turn with the case's, so that
a machine that slows down slows both.

    python -m benchmarks.loss_cost --losses SupConLoss ContrastiveLoss --rows 1024 60000
    python -m benchmarks.loss_cost --jobs 2
    python -m benchmarks.loss_cost --jobs 2 --classes 10 --rows 60000 --memories XBNWrapper

Writes ``loss_cost_<device>.csv``, ``.md`` and ``.png`` to ``benchmarks/results``. A case that the CSV holds
is not measured again; delete its line, or the file. Where a memory does not fit, or takes too long, larger
ones are not tried.
"""

from __future__ import annotations

import argparse
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.engine.results import RESULTS
from benchmarks.loss_cost.case import LOSSES, MEMORIES, NUM_CLASSES, Case, usual_miner
from benchmarks.loss_cost.report import FITS, NO_FIT, Results, key_of, read, write, write_report

_OUT_OF_MEMORY = re.compile(
    "MemoryError|out ?of ?memory|allocate memory|not enough memory|bad_alloc|size calculation overflowed",
    re.I,
)


def planned(arguments: argparse.Namespace) -> Iterator[list[Case]]:
    """Cases that differ in rows alone, ascending."""
    kinds = itertools.product(arguments.losses, arguments.miners, arguments.classes, arguments.memories)
    for loss, miner, classes, memory in kinds:
        name = usual_miner(loss) if miner == "usual" else miner
        yield [Case(memory, loss, name, classes, rows) for rows in sorted(arguments.rows)]


def run(
    plan: list[list[Case]], settings: dict[str, Any], jobs: int, results: Results, save: Callable[[], None]
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
                outcome = _inferred(smaller) or _measured(case, settings)
                if is_stopped.is_set():
                    return
                line = asdict(case) | settings | outcome
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


def _measured(case: Case, settings: dict[str, Any]) -> dict[str, Any]:
    threads = str(settings["threads"])
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.loss_cost.case", json.dumps({"case": asdict(case)} | settings)],
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
        return {"outcome": f"over {settings['time_limit_s']:g} s"}
    if ended.returncode == -signal.SIGKILL or _OUT_OF_MEMORY.search(ended.stderr):
        return {"outcome": NO_FIT}
    last = ended.stderr.strip().splitlines()[-1:] or [f"exit status {ended.returncode}"]
    return {"outcome": f"fails: {last[0][:200]}"}


def main() -> None:
    arguments = _parse()
    names = ("device", "threads", "repeats", "time_limit", "memory_limit")
    units = {"time_limit": "time_limit_s", "memory_limit": "memory_limit_gb"}
    settings = {units.get(name, name): getattr(arguments, name) for name in names}
    path = arguments.output / f"loss_cost_{torch.device(arguments.device).type}.csv"
    results = read(path)
    try:
        run(list(planned(arguments)), settings, arguments.jobs, results, lambda: write(results, path))
    finally:
        if results:
            write_report(results, path)
    print(f"{path}, its table and its picture are written")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--losses", nargs="+", choices=LOSSES, default=LOSSES, metavar="LOSS", help="default: all supported")
    add("--miners", nargs="+", choices=["none", "usual"], default=["none", "usual"])
    add("--classes", nargs="+", choices=NUM_CLASSES, default=["n/10"], help="of n rows (default: n/10)")
    add("--rows", nargs="+", type=int, default=[1_024, 8_192, 60_000, 250_000])
    add("--memories", nargs="+", choices=MEMORIES, default=list(MEMORIES))
    add("--repeats", type=int, default=5, help="steps at most, after warm-up (default: 5)")
    add("--time-limit", type=float, default=20, help="seconds of one step (default: 20)")
    add("--memory-limit", type=float, default=8, help="GB beyond what the libraries take (default: 8)")
    add("--jobs", type=int, default=1, help="cases at a time (default: 1)")
    add("--threads", type=int, default=1, help="of each (default: 1)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--output", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
