"""How much of a difference `MeasuredGain` follows along a run on Han.

    python -m benchmarks.han.gain    (writes benchmarks/results/han_gain.csv; five minutes of a core a run)

The runs are two of ``han_runs.csv``, made again: its best setting from the first step, and warmed up and
filled, with seed 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro
from tqdm import tqdm

from benchmarks.engine.command_line import errors_in_one_line
from benchmarks.engine.results import RESULTS, write_csv
from benchmarks.engine.settings import Positive, check
from benchmarks.han.cases import RULE, Case, memory
from benchmarks.han.data import load_split
from benchmarks.han.report import Runs
from benchmarks.han.train import Training
from pml_xbn.adapters import MeasuredGain

GAINS = "han_gain.csv"
SETTINGS = (Case(RULE), memory(RULE))
_SEED = 1
_EVERY = 46  # steps, of which a run has 114 times as many


@dataclass(frozen=True)
class Settings:
    """What the runs are made of, and where their gains go."""

    root: Path = Path("data/han")  # folder of fonts and images
    output: Path = RESULTS
    threads: Positive = 1

    def __post_init__(self) -> None:
        check(self)


def main() -> None:
    with errors_in_one_line():
        settings = tyro.cli(Settings, prog="python -m benchmarks.han.gain", description=__doc__)
        torch.set_num_threads(settings.threads)
        chosen = filter(None, map(Runs(RESULTS).chosen, SETTINGS))
        rows = [row for case in chosen for row in gains_along(replace(case, seed=_SEED), settings.root)]
        settings.output.mkdir(parents=True, exist_ok=True)
        write_csv(rows, settings.output / GAINS)


def gains_along(case: Case, root: Path) -> Iterator[dict[str, Any]]:
    """Yields K of the mean, and of σ, at some steps of a run."""
    training = Training(case, load_split(root, "train", case.classes), weights=None)
    adapter = next(part for part in training.loss.memory.modules() if isinstance(part, MeasuredGain))
    for number, shown in tqdm(training.batches(), case.begins, training.steps):
        training.step(number, shown)
        if (number + 1) % _EVERY == 0 and training.uses_memory(number):
            of_mean, of_std = adapter.gains.flatten().tolist()
            yield {
                "method": case.method,
                "begins": case.begins,
                "rate": case.rate,
                "seed": case.seed,
                "step": number + 1,
                "rate_now": training.scheduler.get_last_lr()[0],
                "gain_of_mean": of_mean,
                "gain_of_std": of_std,
            }


if __name__ == "__main__":
    main()
