"""What a step of the loss costs, forward and backward, against PML's ``CrossBatchMemory``.

Both take steps in turn in one process (A B A B …), so that a machine that slows down slows both; figures
are medians of the ratio pair by pair. Peak memory is that of a fresh process each.

    python -m benchmarks.cost steps --quick
    python -m benchmarks.cost steps --rows 60000 --miners none pair-margin
    python -m benchmarks.cost steps --full          (the whole grid: hours on a CPU)

Writes ``step_cost_<device>.csv`` and ``.md`` to ``benchmarks/results``. A case that the CSV holds is measured
anew and replaced.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal, get_args

import torch
from tqdm import tqdm

from benchmarks.cost.full_memory import (
    LOSS_NAMES,
    LOSSES,
    MINER_NAMES,
    MINERS,
    NUM_CLASSES,
    FullMemory,
    LossName,
    MinerName,
)
from benchmarks.cost.harness import DEVICE, Peak, compare, in_fresh_process, take_turns
from benchmarks.cost.machine import describe_fully
from benchmarks.cost.page import write_table
from benchmarks.engine.command_line import existing_device
from benchmarks.engine.measuring import milliseconds
from benchmarks.engine.methods import MemorySetup, build_loss
from benchmarks.engine.results import RESULTS, read_csv
from benchmarks.engine.trial import at_most
from pml_xbn.memory._hooks import apply_adapter
from pml_xbn.memory._rows import Undo

MethodName = Literal["xbn", "axbn", "ema", "centre", "unit-norm", "delayed", "per-class", "super-class"]
_NEVER = 10**9  # steps of an epoch, after which "delayed" would adapt
COLUMNS = {
    "method": "class",
    "rows": "M",
    "dim": "d",
    "batch": "batch",
    "loss": "loss",
    "miner": "miner",
    "pml_ms": "PML (ms)",
    "ours_ms": "ours (ms)",
    "ratio": "ours / PML",
    "adaptation_ms": "adaptation (ms)",
    "peak_in_memories": "our peak (memories)",
    "extra_peak_in_memories": "over PML's (memories)",
}


@dataclass(frozen=True)
class Case:
    """One line of the results."""

    rows: int
    dim: int
    batch: int
    loss: str
    miner: str
    method: str

    def memory(self, device: torch.device, is_pml: bool) -> FullMemory:
        """Returns ours or PML's."""
        setup = MemorySetup(self.dim, self.rows, _NEVER, torch.arange(NUM_CLASSES) % 20)
        method = "xbm" if is_pml else self.method
        loss_fn = build_loss(method, setup, LOSSES[self.loss](), MINERS[self.miner]())
        return FullMemory(loss_fn, loss_fn, self.rows, self.batch, device)


def measure(case: Case, device: torch.device, pairs: int) -> dict[str, Any]:
    """Returns one line of the results."""
    pml, ours = (case.memory(device, is_pml) for is_pml in (True, False))
    times = compare(take_turns(pml.step, ours.step, pairs))
    adaptation = median(time_adaptation(ours) for _ in range(pairs))
    del pml, ours
    pml_peak, ours_peak = (in_fresh_process(measure_peak, case, device, is_pml) for is_pml in (True, False))
    megabytes, extra = case.rows * case.dim * 4 / 1e6, ours_peak - pml_peak
    return {
        **asdict(case),
        "pairs": pairs,
        **times,
        "adaptation_ms": adaptation,
        "adaptation_of_step": adaptation / times["ours_ms"],
        "pml_peak_mb": pml_peak,
        "ours_peak_mb": ours_peak,
        "extra_peak_mb": extra,
        "peak_in_memories": ours_peak / megabytes,
        "extra_peak_in_memories": extra / megabytes,
        **describe_fully(device),
    }


def time_adaptation(ours: FullMemory) -> float:
    """Returns milliseconds of adaptation alone, as a memory calls it."""
    contents, undo = ours.loss_fn.queue.contents, Undo()
    embeddings, labels = ours.batch()
    arguments = contents.rows.measured(), contents.labels, embeddings.detach(), labels, undo
    elapsed = milliseconds(lambda: apply_adapter(ours.loss_fn.adapter, *arguments), ours.device)
    undo.undo_()
    return elapsed


def measure_peak(case: Case, device: torch.device, is_pml: bool) -> float:
    """Returns the megabytes that four steps need at most, beyond what the libraries take."""
    replace(case, rows=case.batch).memory(device, is_pml).step()  # what the libraries load at the first step
    peak = Peak(device)
    memory = case.memory(device, is_pml)
    for _ in range(4):
        memory.step()
    return peak.megabytes()


def main(
    quick: bool = False,
    full: bool = False,
    rows: tuple[int, ...] = (60_000,),
    dims: tuple[int, ...] = (512,),
    batches: tuple[int, ...] = (64,),
    losses: tuple[LossName, ...] = ("supcon",),
    miners: tuple[MinerName, ...] = MINER_NAMES,
    methods: tuple[MethodName, ...] = ("xbn", "axbn", "per-class", "super-class"),
    pairs: int = 20,
    device: str = DEVICE,
) -> None:
    """Measures all cases of a grid.

    Args:
        quick: one small case per class, under a minute.
        full: the whole grid.
        rows: in memory.
        dims: of embeddings.
        batches: rows of a batch.
        losses: of PML.
        miners: of PML.
        methods: of ours.
        pairs: steps of each, after warm-up.
        device: where they take place.
    """
    grid: tuple[tuple[Any, ...], ...] = (rows, dims, batches, losses, miners, methods)
    if quick:
        grid = ((8_192,), (128,), batches, losses, ("none",), methods)
    elif full:
        sizes = (1_024, 8_192, 30_000, 60_000, 250_000, 1_000_000)
        grid = (sizes, (128, 512), (16, 64, 256), LOSS_NAMES, MINER_NAMES, get_args(MethodName))
    place = existing_device(device)
    path = RESULTS / f"step_cost_{'quick' if quick else place.type}.csv"
    results = {} if quick else {_key(row): row for row in read_csv(path)}
    text = ""
    grid = (tuple(at_most(size, 8_192) for size in grid[0]), *grid[1:])
    cases, pairs = [Case(*values) for values in itertools.product(*grid)], at_most(pairs)
    bar = tqdm(cases[: at_most(len(cases))], unit="case")
    for case in bar:
        bar.set_description(f"{case.method}, {case.rows} × {case.dim}, batch {case.batch}, {case.loss}")
        result = {name: str(value) for name, value in measure(case, place, pairs).items()}
        results[_key(result)] = result
        made = " or ".join(sorted({row["pairs"] for row in results.values()}, key=int))
        text = write_table(
            [results[key] for key in sorted(results)],
            COLUMNS,
            path,
            "Cost of a step, forward and backward, against PML's CrossBatchMemory",
            f"Medians of {made} interleaved pairs. Written by `benchmarks.cost steps`.",
        )
    print(text)


def _key(row: dict[str, str]) -> tuple[int, str, str, str, str, str]:
    return int(row["rows"]), row["dim"], row["batch"], row["loss"], row["miner"], row["method"]
