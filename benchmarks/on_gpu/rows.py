"""Measures what has no row yet, as far as time allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch

from benchmarks.cost.machine import describe
from benchmarks.engine.measuring import release_memory
from benchmarks.on_gpu.attempt import attempt
from benchmarks.on_gpu.deadline import Deadline
from benchmarks.on_gpu.table import Table

MACHINE = ("device", "driver", "torch")


def columns_of(cell: type[NamedTuple], figures: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the columns of a table: what a cell is, its figures, why there are none, and the machine."""
    return (*cell._fields, *figures, "message", *MACHINE)


def write_rows(
    title: str,
    table: Table,
    cells: Iterable[Any],
    measure: Callable[[Any], dict[str, Any]],
    device: torch.device,
    deadline: Deadline,
    longest: float,
) -> int:
    """Writes a row for every cell that has none, each at once; returns how many have failed.

    Running out of memory, and a package that is not installed, are findings and no failures.

    Args:
        title: of what is measured, for messages.
        table: gets the rows.
        cells: what is measured, in the order of its worth.
        measure: returns the figures of a cell.
        device: on which it is measured.
        deadline: after which nothing is begun.
        longest: seconds that a cell may take.
    """
    machine, failed = describe(device), 0
    for cell in cells:
        row = {**cell._asdict(), **machine}
        if table.has(row):
            continue
        if not deadline.allows(longest):
            print(f"{title}: no time is left; the same command goes on")
            break
        found, error = attempt(partial(measure, cell))
        table.append(row | (found or {"message": error}))
        release_memory(device)
        if error:
            print(f"{title}: {tuple(cell)} has no figures: {error}")
        failed += bool(error) and not is_finding(error)
    return failed


def is_finding(message: str) -> bool:
    """Returns whether an error is one that a reader wants to know of."""
    return message.startswith(("OutOfMemoryError", "MemoryError", "ModuleNotFoundError")) or (
        "not enough memory" in message
    )
