"""What batch normalization that trains does to stored rows and to pairs, from the study's measurements."""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib.axes import Axes

from .style import Style, in_both, recolour, save

EPOCH = "8"  # of 16, before the rate falls
BATCH_SIZES = ("16", "64")
PAIRS = {
    "positives_same_batch": "one class,\nsame batch",
    "positives_other_batch": "one class,\nother batch",
    "negatives_same_batch": "two classes,\nsame batch",
    "negatives_other_batch": "two classes,\nother batch",
}
NORMS = {"batch": "batch norm trains", "frozen": "batch norm frozen"}
WIDTH = 0.38

Row = dict[str, str]


def draw_batch_noise(path: Path, folder: Path) -> None:
    """Writes ``batch_noise_age-light.svg``, ``batch_noise_pairs-light.svg``, and both for dark pages."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["epoch"] == EPOCH]
    for figure, style in in_both((4.2, 3.4)):
        axes = figure.subplots()
        _draw_shares(axes, rows, style)
        recolour(axes, style)
        axes.legend(frameon=False, labelcolor=style.ink, fontsize=9)
        save(figure, folder, "batch_noise_age", style)
    for figure, style in in_both((8.4, 3.4)):
        for axes, batch_size in zip(figure.subplots(1, 2, sharey=True), BATCH_SIZES, strict=True):
            _draw_pairs(axes, [row for row in rows if row["batch_size"] == batch_size], style)
            recolour(axes, style)
            axes.set_title(f"Batch {batch_size}", fontsize=10, color=style.ink)
        axes.legend(frameon=False, labelcolor=style.ink, fontsize=9)
        save(figure, folder, "batch_noise_pairs", style)


def _draw_shares(axes: Axes, rows: list[Row], style: Style) -> None:
    for batch_size, colour in zip(BATCH_SIZES, (style.orange, style.blue), strict=True):
        for norm, line in (("batch", "-"), ("frozen", "--")):
            of_run = [row for row in rows if (row["batch_size"], row["norm"]) == (batch_size, norm)]
            ages = [float(row["age"]) for row in of_run]
            shares = [100 * batch_share(row) for row in of_run]
            label = f"batch {batch_size}, {NORMS[norm].removeprefix('batch norm ')}"
            axes.plot(ages, shares, line, marker="o", markersize=3, color=colour, label=label)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    axes.set(xlabel="age of the row in steps", ylabel="share that is its batch's noise, %", ylim=(-4, 104))


def batch_share(row: Row) -> float:
    """Returns how much of a stored row's squared distance to its fresh embedding is batch norm's noise."""
    of_batch, of_age = float(row["of_batch"]), float(row["of_age"])
    return of_batch / (of_batch + of_age) if of_batch + of_age else 0.0


def _draw_pairs(axes: Axes, rows: list[Row], style: Style) -> None:
    newest = {row["norm"]: row for row in rows if row["age"] == "0"}
    for number, (norm, label) in enumerate(NORMS.items()):
        heights = [float(newest[norm][name]) for name in PAIRS]
        places = [place + WIDTH * number for place in range(len(PAIRS))]
        colour = (style.orange, style.blue)[number]
        bars = axes.bar(places, heights, WIDTH - 0.02, color=colour, label=label)
        axes.bar_label(bars, fmt="%.2f", fontsize=8, color=style.ink)
    axes.axhline(0, color=style.ink, linewidth=0.8)
    axes.set_xticks([place + WIDTH / 2 for place in range(len(PAIRS))], list(PAIRS.values()), fontsize=8)
    axes.set_ylabel("mean cosine of the same pairs")
