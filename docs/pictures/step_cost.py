"""How long a step takes and how much memory it needs, against PML's class."""

from __future__ import annotations

import csv
from pathlib import Path

from .style import in_both, recolour, save

MINERS = {"none": "without miner", "pair-margin": "with PairMarginMiner"}


def draw_step_cost(path: Path, folder: Path) -> None:
    """Writes ``step_cost-light.svg`` and ``-dark.svg`` from the CSV of ``benchmarks/step_cost.py``."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for figure, style in in_both((8, 3.4)):
        time, memory = figure.subplots(1, 2)
        for number, (miner, label) in enumerate(MINERS.items()):
            of_miner = {row["method"]: row for row in rows if row["miner"] == miner}
            places = [place + 0.38 * number for place in range(len(methods))]
            for axes, column in ((time, "ratio"), (memory, "extra_peak_in_memories")):
                heights = [float(of_miner[method][column]) for method in methods]
                bars = axes.bar(places, heights, 0.36, color=(style.blue, style.orange)[number], label=label)
                axes.bar_label(bars, fmt="%.2f", fontsize=8, color=style.paper, label_type="center")
        time.axhline(1, color=style.ink, linestyle="--", linewidth=1)
        time.set(title="Time of a step, ours / PML's", ylim=(0, 1.3))
        memory.set(title="Peak memory over PML's, in memories", ylim=(0, 1.3))
        for axes in (time, memory):
            axes.set_xticks([place + 0.19 for place in range(len(methods))], methods)
            recolour(axes, style)
        time.legend(frameon=False, labelcolor=style.ink, fontsize=8, loc="upper left", ncols=2)
        save(figure, folder, "step_cost", style)
