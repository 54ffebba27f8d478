"""How far adapted rows are from fresh ones, against the number of classes in a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from matplotlib.axes import Axes

from benchmarks.study.cases import Case
from benchmarks.study.measured import Study

from .style import Style, in_both, recolour, save

# Squared distance times the number of classes, where a network stands still: 2 v, v the variance between the
# means of classes, a little below 1 of unit vectors; the noise of the standard deviation comes on top.
EXPECTED = {"centre": 1.7, "xbn": 2.3}
_LOOKS = {"xbn": ("o", "blue", "XBN"), "centre": ("D", "green", "centring")}
_PER_CLASS = 4
_LEAST_SEEDS = 3
_SIZES = (2, 4, 8, 16)


class Distance(NamedTuple):
    """A setting's mean distance after adaptation, and how many classes its batches hold."""

    method: str
    classes: int
    distance: float
    has_batch_norm: bool  # that trains


def draw_noise_law(results: Path, folder: Path) -> None:
    """Writes ``noise_law-light.svg`` and ``noise_law-dark.svg``."""
    found = list(distances(Study(results)))
    for figure, style in in_both((4.2, 4.6)):
        axes = figure.subplots()
        _draw(axes, found, style)
        recolour(axes, style)
        figure.legend(loc="outside lower center", frameon=False, labelcolor=style.ink, fontsize=8.5)
        save(figure, folder, "noise_law", style)


def distances(study: Study) -> Iterator[Distance]:
    """Yields the settings of XBN and of centring that three seeds or more have measured."""
    found: dict[Case, list[float]] = {}
    for case, row in study.all_runs.items():
        if case.name in EXPECTED and row.get("staleness_after"):
            found.setdefault(replace(case, seed=0), []).append(float(row["staleness_after"]))
    for case, values in found.items():
        if len(values) >= _LEAST_SEEDS:
            yield Distance(case.name, case.batch_size // _PER_CLASS, fmean(values), case.norm == "batch")


def _draw(axes: Axes, found: list[Distance], style: Style) -> None:
    for method, (sign, colour, name) in _LOOKS.items():
        ink, beside = getattr(style, colour), 0.96 if method == "centre" else 1.04
        for has_batch_norm in (False, True):
            of_kind = [x for x in found if (x.method, x.has_batch_norm) == (method, has_batch_norm)]
            words = "batch norm trains" if has_batch_norm else "batch norm frozen, or none"
            axes.plot(
                [x.classes * beside for x in of_kind],
                [x.distance for x in of_kind],
                sign,
                color=ink,
                markerfacecolor="none" if has_batch_norm else ink,
                markersize=4.5,
                label=f"{name}, {words}",
            )
        expected = [(EXPECTED[method] / n) ** 0.5 for n in _SIZES]
        axes.plot(_SIZES, expected, ":", color=ink, label=f"{name}, expected: √({EXPECTED[method]} / n)")
    axes.set(xscale="log", yscale="log", ylim=(0.17, 1.3))
    axes.set_xticks(_SIZES, map(str, _SIZES))
    axes.set_yticks([0.2, 0.3, 0.5, 0.7, 1], ["0.2", "0.3", "0.5", "0.7", "1"])
    axes.minorticks_off()
    axes.set_xlabel("classes in a batch, n (four images of each)", fontsize=9)
    axes.set_ylabel("distance from fresh rows", fontsize=9)
