"""How far rows are from fresh ones along a run on Han, and what comes of each learning rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes

from benchmarks.han.cases import STEPS, Case, memory
from benchmarks.han.report import CHOICE, Runs

from .style import Style, in_both, recolour, save

RATE = 8e-3  # of the runs along which distances are shown
# Setting, sign and line, colour, name.
_LOOKS = (
    (Case("xbm"), "s--", "orange", "XBM from the first step"),
    (Case("xbn"), "o--", "blue", "XBN from the first step"),
    (memory("xbm"), "s-", "orange", "XBM warmed up, filled"),
    (memory("xbn"), "o-", "blue", "XBN warmed up, filled"),
)


def draw_han_drift(results: Path, folder: Path) -> None:
    """Writes ``han_distance`` and ``han_rates``, light and dark."""
    runs = Runs(results)
    for name, draw in (("han_distance", _draw_distances), ("han_rates", _draw_rates)):
        for figure, style in in_both((4.2, 4.6)):
            axes = figure.subplots()
            draw(axes, runs, style)
            recolour(axes, style)
            figure.legend(loc="outside lower center", frameon=False, labelcolor=style.ink, fontsize=8.5)
            save(figure, folder, name, style)


def distances(runs: Runs, setting: Case) -> list[tuple[int, float, float]]:
    """Returns steps, and mean squared distances of rows as the loss gets them, and of two fresh ones."""
    entries = runs.log.get(replace(setting, rate=RATE, seed=CHOICE), [])
    return [(int(x["step"]), float(x["after"]), float(x["floor"])) for x in entries if x["after"]]


def recall_by_rate(runs: Runs, setting: Case) -> list[tuple[float, float]]:
    """Returns rates and Recall@1 of the seed that chose."""
    found = [
        (case.rate, float(row["recall_at_1"]))
        for case, row in runs.rows.items()
        if case.setting == setting.setting and case.seed == CHOICE and row["recall_at_1"]
    ]
    return sorted(found)


def _draw_lines(axes: Axes, style: Style, points: Callable[[Case], Sequence[tuple[float, ...]]]) -> None:
    """Draws the line of every setting, through the first two numbers of its points."""
    for setting, line, colour, name in _LOOKS:
        found, ink = points(setting), getattr(style, colour)
        axes.plot([x[0] for x in found], [x[1] for x in found], line, color=ink, markersize=4, label=name)


def _draw_distances(axes: Axes, runs: Runs, style: Style) -> None:
    _draw_lines(axes, style, lambda setting: distances(runs, setting))
    found = distances(runs, memory("xbn"))
    label = "two fresh embeddings of an image"
    axes.plot([x[0] for x in found], [x[2] for x in found], ":", color=style.ink, label=label)
    axes.set(ylim=(0, None), xlim=(0, STEPS))
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel("squared distance from fresh rows", fontsize=9)


def _draw_rates(axes: Axes, runs: Runs, style: Style) -> None:
    _draw_lines(axes, style, lambda setting: recall_by_rate(runs, setting))
    axes.set(xscale="log", ylim=(0, 100))
    rates = sorted({rate for setting, *_ in _LOOKS for rate, _ in recall_by_rate(runs, setting)})
    axes.set_xticks(rates, [f"{1000 * rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set_xlabel("largest learning rate, thousandths", fontsize=9)
    axes.set_ylabel("Recall@1", fontsize=9)
