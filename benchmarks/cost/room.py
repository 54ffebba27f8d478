"""How much memory a step takes with every miner and every loss, where classes are large and small.

    python -m benchmarks.cost room

Forward and backward of XBN with a full memory, each case in a process of its own whose memory is limited:
every miner with ContrastiveLoss, and every loss without a miner. Writes ``room_<device>.csv`` and ``.md`` to
``benchmarks/results``. Times are over that of SupConLoss, whose steps are taken in turn, and rounded to one
digit: so a machine that does something else besides is good enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.cost.harness import DEVICE
from benchmarks.cost.loss_case import BATCH, LOSSES, OURS, Case
from benchmarks.cost.losses import measured
from benchmarks.cost.losses_page import FITS
from benchmarks.cost.machine import describe_fully, name_machines
from benchmarks.engine.command_line import existing_device
from benchmarks.engine.results import RESULTS, markdown, write_csv
from benchmarks.engine.trial import at_most

CLASSES = ("10", "1000")
MINERS = (
    "AngularMiner",
    "BatchEasyHardMiner",
    "BatchHardMiner",
    "DistanceWeightedMiner",
    "HDCMiner",
    "MultiSimilarityMiner",
    "PairMarginMiner",
    "TripletMarginMiner",
    "UniformHistogramMiner",
)


def planned(rows: int) -> Iterator[Case]:
    """Yields the cases, of every loss and miner all numbers of classes after each other."""
    pairs = [("ContrastiveLoss", miner) for miner in MINERS] + [(loss, "none") for loss in LOSSES]
    for loss, miner in pairs:
        for classes in CLASSES:
            yield Case(loss, miner, classes, OURS, rows)


def main(
    rows: int = 65_536,
    repeats: int = 3,
    time_limit: float = 60,
    memory_limit: float = 12,
    device: str = DEVICE,
    output: Path = RESULTS,
) -> None:
    """Measures all cases.

    Args:
        rows: in memory.
        repeats: steps at most, after warm-up.
        time_limit: seconds of one step.
        memory_limit: GB beyond what the libraries take.
        device: where the steps take place.
        output: folder of the table.
    """
    machine = describe_fully(existing_device(device), 1)
    conditions = {
        "device": device,
        "threads": 1,
        "repeats": at_most(repeats),
        "time_limit_s": time_limit,
        "memory_limit_gb": memory_limit,
    }
    cases = list(planned(at_most(rows, 100)))
    outcomes: list[dict[str, Any]] = []
    for case in tqdm(cases[: at_most(len(cases))], unit="case"):
        outcomes.append(case._asdict() | conditions | measured(case, conditions) | machine)
    path = output / f"room_{torch.device(device).type}.csv"
    write_csv(outcomes, path)
    path.with_suffix(".md").write_text(page(outcomes), encoding="utf-8")
    print(path.with_suffix(".md").read_text(encoding="utf-8"))


def page(outcomes: list[dict[str, Any]]) -> str:
    """Returns the tables, in Markdown."""
    first = outcomes[0]
    of_miners = [row for row in outcomes if row["miner"] != "none"]
    of_losses = [row for row in outcomes if row["miner"] == "none"]
    parts = [
        "# Memory and time of a step with every miner and every loss",
        f"XBN, a full memory of {int(first['rows']):,} rows of 512, batch {BATCH}, forward and backward. "
        "*Peak* is what the process takes at most beyond the libraries, the rows included. *Time* is that of "
        "one thread over that of SupConLoss without a miner (about 0.1 s on a CPU that has nothing else to "
        "do), whose steps are taken in turn: the median of a few ratios, rounded to one digit, as the CPU "
        "did other work besides. "
        f"Measured on: {name_machines(outcomes)}. Written by `benchmarks.cost room`.",
        f"✗: takes more than {float(first['memory_limit_gb']):g} GB. >: a step takes longer than that.",
        "Miners, with ContrastiveLoss:",
        _table(of_miners, "miner"),
    ]
    if of_losses:
        parts += ["Losses, without a miner:", _table(of_losses, "loss")]
    return "\n\n".join(parts) + "\n"


def _table(outcomes: list[dict[str, Any]], by: str) -> str:
    cells: dict[str, list[str]] = {}
    for row in outcomes:
        cells.setdefault(row[by], [row[by]]).extend(_cells(row))
    classes = [f"{int(number):,}" for number in dict.fromkeys(row["classes"] for row in outcomes)]
    heads = [f"{what}, {number} classes" for number in classes for what in ("peak (MB)", "time")]
    return markdown([by, *heads], cells.values(), [by])


def _cells(row: dict[str, Any]) -> tuple[str, str]:
    if row["outcome"] == FITS:
        times = float(f"{float(row['times_supcon'] or 'nan'):.1g}")
        return f"{float(row['peak_mb']):,.0f}", f"{times:g}"
    if row["outcome"].startswith("over"):
        return "?", f"> {float(row['time_limit_s']):g} s"
    return ("✗", "✗") if row["outcome"] == "does not fit" else ("fails", "fails")
