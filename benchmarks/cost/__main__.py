"""Measures what a step of the loss costs, and writes a table.

    python -m benchmarks.cost steps --quick      (against PML's class, a minute)
    python -m benchmarks.cost losses             (every supported loss: which fit, and how long they take)
    torchrun --nproc_per_node=2 -m benchmarks.cost ranks    (on many ranks)
    python -m benchmarks.cost shards             (with rows that are spread over ranks, six minutes)
    python -m benchmarks.cost scale              (as the memory grows to four million rows)
    python -m benchmarks.cost room               (memory and time of every miner and loss, ten minutes)
    python -m benchmarks.cost operations         (of what a step consists)

Tables are CSV files with a page beside them, in ``benchmarks/results``. Every row names device, versions and
threads.
"""

from __future__ import annotations

from collections.abc import Callable

import tyro

from benchmarks.cost import losses, operations, ranks, room, scale, shards, steps
from benchmarks.engine.command_line import errors_in_one_line

TABLES: dict[str, Callable[..., None]] = {
    "steps": steps.main,
    "losses": losses.main,
    "ranks": ranks.main,
    "shards": shards.main,
    "scale": scale.main,
    "room": room.main,
    "operations": operations.main,
}

if __name__ == "__main__":
    with errors_in_one_line():
        tyro.extras.subcommand_cli_from_dict(TABLES, prog="python -m benchmarks.cost", description=__doc__)
