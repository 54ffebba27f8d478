"""Stale memory hurts, adapted memory repairs it: a comparison on Glyphs in a few minutes.

Trains every method from one shared warm start (an epoch without memory), with the same seed and
the same batches; prints a table and writes a picture, CSV files and logs under ``runs/``.

    python -m benchmarks.demo
    python -m benchmarks.demo --methods no-xbm xbm xbn super-class --seed 1
"""

from __future__ import annotations

from functools import partial
from statistics import fmean, median

import torch

from benchmarks.demo.settings import Settings
from benchmarks.demo.task import GlyphsData, GlyphsTask
from benchmarks.engine.command_line import errors_in_one_line, read
from benchmarks.engine.comparison import Comparison
from benchmarks.engine.history import History, Row
from benchmarks.engine.run import Run

COLUMNS = {
    "recall_at_1": "Recall@1",
    "recall_at_10": "Recall@10",
    "map_at_r": "MAP@R",
    "step_ms": "step (ms)",
    "drift": "drift",
}
PANELS = {
    "recall_at_1": ("Test accuracy", "Recall@1 (%)"),
    "drift": ("Feature drift per step", r"$\|z^k - z^{k-1}\|_2$, mean over the epoch"),
}


def main() -> None:
    torch.set_num_threads(1)  # a network this small gains little from more
    with errors_in_one_line():
        settings, _ = read(Settings, __doc__)
        data = GlyphsData(settings)
        comparison = compare(data)

    print(
        f"{data.train.name}: {len(data.train.images)} training and {len(data.test.images)} test images, "
        f"{data.memory_setup.memory_size} rows of memory, {len(data.batches)} steps per epoch"
    )
    summary = partial(_summary, warmup_epochs=settings.warmup_epochs)
    print(comparison.report(COLUMNS, summary, PANELS, "comparison.png"))


def compare(data: GlyphsData) -> Comparison:
    """Returns the comparison that the settings ask for."""
    settings = data.settings
    images, warmup = data.train.checksum, settings.warmup_epochs
    return Comparison(lambda method: Run(GlyphsTask(data, method)), settings, images, warmup)


def _summary(history: History, warmup_epochs: int) -> Row:
    """Returns accuracy after the last epoch; median step time and mean drift since the warm start."""
    last = history.epochs[-1]
    return {
        **{name: last[name] for name in ("recall_at_1", "recall_at_10", "map_at_r")},
        "step_ms": 1000 * median(history.step_times),
        "drift": fmean(row["drift"] for row in history.epochs[warmup_epochs:]),
    }


if __name__ == "__main__":
    main()
