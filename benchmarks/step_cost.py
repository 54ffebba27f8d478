"""What a step of the loss costs, forward and backward, against PML's ``CrossBatchMemory``.

Both take steps in turn in one process (A B A B …), so that a machine that slows down slows both; figures
are medians of the ratio pair by pair. Peak memory is that of a fresh process each.

    python -m benchmarks.step_cost --quick
    python -m benchmarks.step_cost --rows 60000 --miners none pair-margin
    python -m benchmarks.step_cost --full          (the whole grid: hours on a CPU)

Writes ``step_cost_<device>.csv``, ``.md`` and ``.png`` to ``benchmarks/results``. A case that the CSV holds
is measured anew and replaced.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pytorch_metric_learning import losses, miners
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.engine.measuring import milliseconds, peak_rss
from benchmarks.step_cost_report import key_of, read_csv, write_report
from pml_xbn import AXBNWrapper, PerClassXBN, SuperClassXBN, XBNWrapper

RESULTS = Path(__file__).parent / "results"
NUM_CLASSES, NUM_SUPERCLASSES, IMAGES_PER_CLASS = 12_000, 20, 4
PML = losses.CrossBatchMemory
OURS: dict[str, Callable[..., nn.Module]] = {
    "xbn": XBNWrapper,
    "axbn": AXBNWrapper,
    "ema": lambda *a: XBNWrapper(*a, momentum=0.5),
    "centre": lambda *a: XBNWrapper(*a, match_std=False),
    "unit-norm": lambda *a: XBNWrapper(*a, normalize_memory=True),
    "xbm-star": lambda *a: XBNWrapper(*a, batch_loss_weight=1.0),
    "delayed": lambda *a: XBNWrapper(*a, delay=10**9),
    "unchecked": lambda *a: XBNWrapper(*a, nonfinite="ignore"),
    "per-class": PerClassXBN,
    "super-class": lambda *a: SuperClassXBN(*a, superclasses=torch.arange(NUM_CLASSES) % NUM_SUPERCLASSES),
}
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "supcon": lambda: losses.SupConLoss(temperature=0.1),
    "contrastive": losses.ContrastiveLoss,
    "multi-similarity": losses.MultiSimilarityLoss,
}
MINERS: dict[str, Callable[[], nn.Module | None]] = {
    "none": lambda: None,
    "pair-margin": lambda: miners.PairMarginMiner(0.2, 0.8),
}
FULL = {
    "rows": [1_024, 8_192, 30_000, 60_000, 250_000, 1_000_000],
    "dims": [128, 512],
    "batches": [16, 64, 256],
    "losses": list(LOSSES),
    "miners": list(MINERS),
    "methods": list(OURS),
}


@dataclass(frozen=True)
class Case:
    """One line of the results."""

    method: str
    rows: int
    dim: int
    batch: int
    loss: str
    miner: str


class Subject:
    """A full memory, ours or PML's, that takes steps on random batches."""

    def __init__(self, case: Case, device: torch.device, is_pml: bool) -> None:
        self.case, self.device = case, device
        make = PML if is_pml else OURS[case.method]
        self.loss_fn: Any = make(LOSSES[case.loss](), case.dim, case.rows, MINERS[case.miner]())
        self.loss_fn.to(device)
        generator = torch.Generator(device).manual_seed(0)
        fill(self.loss_fn, case.rows, case.dim, generator)
        self.generator = generator

    def batch(self) -> tuple[Tensor, Tensor]:
        case, generator = self.case, self.generator
        embeddings = torch.empty(case.batch, case.dim, device=self.device)
        fill_with_embeddings(embeddings, generator)
        classes = torch.randint(
            NUM_CLASSES, (case.batch // IMAGES_PER_CLASS,), device=self.device, generator=generator
        )
        return embeddings.requires_grad_(), classes.repeat_interleave(IMAGES_PER_CLASS)

    def step(self) -> float:
        """Milliseconds of one forward and backward."""
        batch = self.batch()
        if self.device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            self.loss_fn(*batch).backward()
            end.record()
            torch.cuda.synchronize()
            return float(start.elapsed_time(end))
        began = time.perf_counter()
        self.loss_fn(*batch).backward()
        return 1000 * (time.perf_counter() - began)

    def host_waits(self) -> int:
        """How often one step makes the GPU wait for the host."""
        batch = self.batch()
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            self.loss_fn(*batch).backward()
        torch.cuda.set_sync_debug_mode("default")
        return len(waits)


def fill(loss_fn: Any, rows: int, dim: int, generator: torch.Generator) -> None:
    """Stores so many rows, a part at a time, so that at no moment there is twice the memory."""
    for first in range(0, rows, 2**12):
        part = torch.empty(min(2**12, rows - first), dim, device=generator.device)
        fill_with_embeddings(part, generator)
        labels = torch.randint(NUM_CLASSES, (len(part),), device=generator.device, generator=generator)
        loss_fn.add_to_memory(part, labels, len(part))


def fill_with_embeddings(rows: Tensor, generator: torch.Generator) -> None:
    """Unit vectors 0.8 apart on average, so that PairMarginMiner(0.2, 0.8) takes about half the pairs."""
    rows.normal_(std=(0.5 / rows.shape[1]) ** 0.5, generator=generator)
    rows[:, 0] += 1
    rows /= rows.norm(dim=1, keepdim=True)


def measure(case: Case, device: torch.device, pairs: int) -> dict[str, object]:
    """One line of the results."""
    pml, ours = Subject(case, device, is_pml=True), Subject(case, device, is_pml=False)
    for _ in range(3):
        pml.step()
        ours.step()
    times = [(pml.step(), ours.step()) for _ in range(pairs)]
    adaptation = median(_adaptation_time(ours) for _ in range(pairs))
    result: dict[str, object] = {
        **asdict(case),
        "pairs": pairs,
        "pml_ms": median(a for a, _ in times),
        "ours_ms": median(b for _, b in times),
        "ratio": median(b / a for a, b in times),
        "adaptation_ms": adaptation,
        "adaptation_of_step": adaptation / median(b for _, b in times),
    }
    if device.type == "cuda":
        result |= {"pml_waits": pml.host_waits(), "ours_waits": ours.host_waits()}
    del pml, ours
    peaks = [_peak_of_fresh_process(case, device, is_pml) for is_pml in (True, False)]
    result |= {"pml_peak_mb": peaks[0], "ours_peak_mb": peaks[1], "extra_peak_mb": peaks[1] - peaks[0]}
    megabytes = case.rows * case.dim * 4 / 1e6
    result |= {
        "peak_in_memories": peaks[1] / megabytes,
        "extra_peak_in_memories": (peaks[1] - peaks[0]) / megabytes,
    }
    return result


def _adaptation_time(ours: Subject) -> float:
    """Milliseconds of adaptation alone, as a memory calls it."""
    contents = ours.loss_fn.queue.contents
    embeddings, labels = ours.batch()
    arguments = contents.rows, contents.labels, embeddings.detach(), labels
    elapsed = milliseconds(lambda: ours.loss_fn.adapter.adapt(*arguments), ours.device)
    contents.rows.take_back()
    return elapsed


def _peak_of_fresh_process(case: Case, device: torch.device, is_pml: bool) -> float:
    """Megabytes that four steps need at most, beyond what the libraries take."""
    job = json.dumps({"case": asdict(case), "device": str(device), "is_pml": is_pml})
    command = [sys.executable, "-m", "benchmarks.step_cost", "--peak-of", job]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(finished.stdout.splitlines()[-1])


def _print_peak(job: str) -> None:
    settings = json.loads(job)
    device = torch.device(settings["device"])
    small = Case(**{**settings["case"], "rows": settings["case"]["batch"]})
    Subject(small, device, settings["is_pml"]).step()  # what the libraries load at the first step
    before = peak_rss()
    subject = Subject(Case(**settings["case"]), device, settings["is_pml"])
    for _ in range(4):
        subject.step()
    if device.type == "cuda":
        print(torch.cuda.max_memory_allocated() / 1e6)
    else:
        print(peak_rss() - before)


def main() -> None:
    arguments = _parse()
    if arguments.peak_of:
        _print_peak(arguments.peak_of)
        return
    device = torch.device(arguments.device)
    grid = FULL if arguments.full else {name: getattr(arguments, name) for name in FULL}
    cases = [
        Case(method, rows, dim, batch, loss, miner)
        for rows, dim, batch, loss, miner, method in itertools.product(*grid.values())
    ]
    path = RESULTS / f"step_cost_{'quick' if arguments.quick else device.type}.csv"
    results = {} if arguments.quick else read_csv(path)
    bar = tqdm(cases, unit="case")
    for case in bar:
        bar.set_description(f"{case.method}, {case.rows} × {case.dim}, batch {case.batch}, {case.loss}")
        result = measure(case, device, arguments.pairs)
        results[key_of(result)] = {name: str(value) for name, value in result.items()}
        write_report(results, path, device)
    print(path.with_suffix(".md").read_text())


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="one small case per class, under a minute")
    add("--full", action="store_true", help="the whole grid")
    add("--rows", type=int, nargs="+", default=[60_000])
    add("--dims", type=int, nargs="+", default=[512])
    add("--batches", type=int, nargs="+", default=[64])
    add("--losses", nargs="+", choices=LOSSES, default=["supcon"])
    add("--miners", nargs="+", choices=MINERS, default=list(MINERS))
    add("--methods", nargs="+", choices=OURS, default=["xbn", "axbn", "per-class", "super-class"])
    add("--pairs", type=int, default=20, help="steps of each, after warm-up (default: 20)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--peak-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.dims, arguments.miners = [8_192], [128], ["none"]
    return arguments


if __name__ == "__main__":
    main()
