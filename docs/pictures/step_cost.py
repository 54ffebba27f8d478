"""How long a step takes and how much memory it needs, against PML's class."""

from __future__ import annotations

import csv
from pathlib import Path

from .style import in_both, recolour, save

MINERS = {"none": "without miner", "pair-margin": "with PairMarginMiner"}
PANELS = {
    "time": ("ratio", "Time of a step, ours / PML's"),
    "memory": ("extra_peak_in_memories", "Peak memory over PML's, in memories"),
}
METHODS = ("xbn", "axbn", "per-class", "super-class")
CASE = {"rows": "60000", "dim": "512", "batch": "64", "loss": "supcon"}
WIDTH = 0.38


def draw_step_cost(path: Path, folder: Path) -> None:
    """Writes ``step_cost_time-light.svg`` and so on, of the four classes in one case."""
    with path.open(newline="") as file:
        of_case = [row for row in csv.DictReader(file) if CASE.items() <= row.items()]
    rows = [row for row in of_case if row["method"] in METHODS]
    for panel, (column, title) in PANELS.items():
        for figure, style in in_both((4.2, 3.4)):
            axes = figure.subplots()
            recolour(axes, style)
            for number, (miner, label) in enumerate(MINERS.items()):
                heights = {row["method"]: float(row[column]) for row in rows if row["miner"] == miner}
                places = [METHODS.index(method) + WIDTH * number for method in heights]
                colour = (style.blue, style.orange)[number]
                bars = axes.bar(places, list(heights.values()), WIDTH - 0.02, color=colour, label=label)
                axes.bar_label(bars, fmt="%.2f", fontsize=8, color=style.paper, label_type="center")
            if panel == "time":
                axes.axhline(1, color=style.ink, linestyle="--", linewidth=1)
            axes.axhline(0, color=style.ink, linewidth=0.8)
            case = f"{int(CASE['rows']):,} rows, batch {CASE['batch']}"
            axes.set_title(f"{title}\n{case}", fontsize=10, color=style.ink)
            axes.set_xticks([place + WIDTH / 2 for place in range(len(METHODS))], METHODS)
            figure.legend(
                *axes.get_legend_handles_labels(),
                frameon=False,
                labelcolor=style.ink,
                fontsize=9,
                loc="outside lower center",
                ncols=2,
            )
            save(figure, folder, f"step_cost_{panel}", style)
