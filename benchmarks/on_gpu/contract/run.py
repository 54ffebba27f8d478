"""Takes all checks, each a row of the table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.cost.machine import describe
from benchmarks.on_gpu.attempt import attempt
from benchmarks.on_gpu.contract import (
    graphs,
    losses,
    options,
    precision,
    ranks,
    resuming,
    rows,
    streams,
    waits,
)
from benchmarks.on_gpu.contract.check import Check, Outcome
from benchmarks.on_gpu.deadline import Deadline
from benchmarks.on_gpu.table import Table

FILE = "gpu_contract.csv"
_KEY = ("name", "case", "dtype", "device", "torch")
COLUMNS = (
    "name",
    "case",
    "dtype",
    "passed",
    "error",
    "tolerance",
    "seconds",
    "message",
    "device",
    "driver",
    "torch",
)
_STEPS, _TINY_STEPS = 300, 40
_LONGEST = 5.0  # seconds of a check


def checks(is_tiny: bool) -> Iterator[Check]:
    """Yields the checks, first those that are most likely to differ on a device."""
    yield from waits.checks()
    yield from rows.checks(_TINY_STEPS if is_tiny else _STEPS)
    yield from resuming.checks()
    yield from precision.checks()
    yield from ranks.checks()
    yield from streams.checks()
    yield from graphs.checks()
    yield from options.checks()
    yield from losses.checks()


def run(folder: Path, device: torch.device, deadline: Deadline, is_tiny: bool) -> int:
    """Writes a row for every check that has none yet, as far as time allows; returns how many have failed."""
    table, machine = Table(folder / FILE, COLUMNS, _KEY), describe(device)
    failed = 0
    for check in checks(is_tiny):
        key = {"name": check.name, "case": check.case, "dtype": check.dtype, **machine}
        if table.has(key):
            continue
        if not deadline.allows(_LONGEST):
            print("contract: no time is left; the same command goes on")
            break
        began = time.monotonic()
        outcome = _take(check, device)
        seconds = time.monotonic() - began
        passed = outcome.error <= outcome.tolerance  # not so where the error is NaN
        failed += not passed
        table.append(
            {**key, **outcome._asdict(), "error": float(outcome.error), "passed": passed, "seconds": seconds}
        )
        if not passed:
            print(f"contract: {check.name}, {check.case}, {check.dtype} failed: {outcome}")
    return failed


def _take(check: Check, device: torch.device) -> Outcome:
    """Returns what a check found; one that ends in an error has failed, and the others go on."""
    outcome, error = attempt(partial(check.run, device))
    return outcome or Outcome(float("inf"), 0, error)
