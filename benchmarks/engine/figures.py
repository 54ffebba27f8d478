"""How all pictures look, and that of curves over epochs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.engine.history import History

# Okabe and Ito's palette, which colour-blind readers can tell apart, and a grey.
PALETTE = ["#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F"]
_MARKERS = "osD^vPX*<>h"
_LINES = ("-", "--", "-.", ":")
_MARKED_EPOCHS = 20  # as many markers fit on a curve


def style(number: int) -> dict[str, Any]:
    """Returns the style of one curve among others."""
    return {
        "color": PALETTE[number % len(PALETTE)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _LINES[number % len(_LINES)],
        "linewidth": 2,
        # Smaller and smaller with a white rim, so that equal curves show behind each other.
        "markersize": max(5, 11 - 1.5 * number),
        "markeredgecolor": "white",
    }


def draw_curves(
    histories: Mapping[str, History],
    panels: Mapping[str, tuple[str, str]],
    path: Path,
    warmup_epochs: int = 0,
    warmup_label: str = "",
) -> None:
    """Draws columns of the epochs' tables, a panel each with its title and label, the first epochs shaded."""
    figure = Figure(figsize=(2 + 4.5 * len(panels), 4.4), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (column, (title, label)) in zip(all_axes, panels.items(), strict=True):
        for number, (name, history) in enumerate(histories.items()):
            epochs = [row["epoch"] for row in history.epochs]
            values = [row[column] for row in history.epochs]
            every = max(1, len(epochs) // _MARKED_EPOCHS)
            axes.plot(epochs, values, label=name, markevery=every, **style(number))
        if warmup_epochs:
            axes.axvspan(0.5, warmup_epochs + 0.5, color="0.92", zorder=0)
            axes.text(
                (warmup_epochs + 1) / 2,
                0.02,
                warmup_label,
                color="0.35",
                ha="center",
                va="bottom",
                transform=axes.get_xaxis_transform(),
            )
        axes.set(title=title, xlabel="epoch", ylabel=label)
        axes.set_ylim(0, None)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color="0.88")
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0].legend(frameon=False)
    figure.savefig(path, dpi=150)
