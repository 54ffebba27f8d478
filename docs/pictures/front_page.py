"""The two pictures of README.md, which are files of the repository: a page of a code host draws nothing.

python -m docs.pictures.front_page    (writes docs/images/gain.png and docs/images/steps.png)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.han import cases as han
from benchmarks.han.report import CLASSES, Runs
from pml_xbn.adapters import MomentMatching

from .adaptation import cloud, embeddings_of_a_run, plane_of
from .classes import (
    Point,
    axis_of_shares,
    of_fine_tuning,
    of_han,
    of_other_weights,
    of_random_weights,
    of_the_papers,
    of_two_towers,
)
from .style import STYLES, recolour

ROOT = Path(__file__).parents[2]
RESULTS, IMAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
LIGHT = STYLES[0]  # on white paper, also where the page is dark
# Small enough that words can be read where 390 pixels show the whole width.
_WIDTH, _DPI = 5.4, 144
# What is drawn -> sign, colour, whether it is filled, and words of the legend.
_LOOKS = {
    "papers": ("^", "ink", False, "pretrained, all layers train (AXBN paper)"),
    "fine-tuning, whole network": ("D", "green", False, "pretrained, all layers train"),
    "last layers": ("D", "green", True, "pretrained, last layers train"),
    "fine-tuning, MultiSimilarity": ("x", "green", True, "last layers, MultiSimilarityLoss"),
    "random weights": ("o", "blue", True, "from random weights"),
    "two towers": ("X", "orange", True, "pairs of texts"),
}
_LAST_LAYERS = ("fine-tuning, SupCon", "senses of words")


def drawn_points(results: Path) -> Iterator[Point]:
    """Yields what `XBNWrapper` gains over no memory at the same batch size, everywhere."""
    gain = Runs(results).difference(han.memory("xbn"), han.none(64), "recall_at_1")
    if gain is not None:
        yield Point("Han, 64", 100 * 32 / CLASSES, gain, "same", "random weights")
    for point in of_han(results):
        if (point.kind, point.compared) == ("Han, XBN", "same") and point.share > 100 * 32 / CLASSES:
            yield point._replace(kind="random weights")  # with fewer classes, one seed
    found = [*of_random_weights(results), *of_two_towers(results), *of_the_papers()]
    found += of_other_weights(results)
    yield from (point for point in found if point.compared == "same")
    for point in of_fine_tuning(results, last_stage_at_64="centre+batch loss"):
        if point.compared == "same":
            yield point._replace(kind="last layers") if point.kind in _LAST_LAYERS else point


def figures_of(points: Iterator[Point]) -> str:
    """Returns what the picture says, as words that are stored in its file. Shares are those of the marks."""
    return "; ".join(
        f"{x.name} ({x.kind}) {x.share:.2f} %: {x.gain.mean:+.1f}"
        + (f" ± {x.gain.half_width:.1f}" if x.gain.half_width else "")
        for x in points
    )


def draw_gain(results: Path, path: Path) -> None:
    """Draws what a memory gains against the share of the classes in a batch."""
    figure = Figure(figsize=(_WIDTH, 4), layout="constrained")
    axes = figure.subplots()
    points = [*drawn_points(results)]
    for kind, (mark, colour, is_filled, words) in _LOOKS.items():
        of_kind = [point for point in points if point.kind == kind]
        ink = getattr(LIGHT, colour)
        options: dict[str, Any] = {"color": ink, "markersize": 5, "markeredgewidth": 1.2, "label": words}
        options["markerfacecolor"] = ink if is_filled else LIGHT.paper
        shares, means = [point.share for point in of_kind], [point.gain.mean for point in of_kind]
        half_widths = [point.gain.half_width or math.nan for point in of_kind]
        if all(map(math.isnan, half_widths)):  # errorbar would give the legend a bar
            axes.plot(shares, means, mark, **options)
            continue
        axes.errorbar(
            shares,
            means,
            yerr=half_widths,
            fmt=mark,
            elinewidth=0.9,
            capsize=2.5,  # without it a mark covers a short bar
            capthick=0.9,
            **options,
        )
    axis_of_shares(axes, 18, (0.03, 0.1, 0.3, 1, 3, 10), LIGHT)
    axes.set_xlabel("share of the training classes in a batch, %", fontsize=10.5)
    axes.set_ylabel("Recall@1 gained, points", fontsize=10.5)
    recolour(axes, LIGHT)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9, columnspacing=0.6)
    _save(figure, path, figures_of(iter(points)))


def draw_steps(path: Path) -> None:
    """Draws store, drift and adapt, of a network that trains: see adaptation.py."""
    run = embeddings_of_a_run()
    stored_labels, labels = torch.zeros(len(run.stored)), torch.zeros(len(run.batch))
    adapted = MomentMatching()(run.stored, stored_labels, run.batch, labels)
    plane = plane_of(run.stored, run.fresh)
    stored, batch, adapted = (rows @ plane for rows in (run.stored, run.batch, adapted))
    both = torch.cat([stored, batch, adapted])
    low, high = both.min(dim=0).values - 0.3, both.max(dim=0).values + 0.3
    figure = Figure(figsize=(_WIDTH, 2.9), layout="constrained")
    panels: Iterator[Axes] = iter(figure.subplots(1, 3))
    for title, rows, colour, words in (
        ("1. Store", stored, LIGHT.orange, "stored"),
        ("2. Drift", stored, LIGHT.orange, ""),
        ("3. Adapt", adapted, LIGHT.green, "stored, adapted"),
    ):
        axes = next(panels)
        cloud(axes, rows, colour, words)
        if title != "1. Store":
            cloud(axes, batch, LIGHT.blue, "newest batch" if words else "", size=12)
        axes.set(xticks=[], yticks=[], xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        axes.set_title(title, fontsize=12)
        recolour(axes, LIGHT)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=10.5, markerscale=2)
    _save(figure, path, "embeddings of a network after 60 steps")


def _save(figure: Figure, path: Path, words: str) -> None:
    figure.savefig(path, dpi=_DPI, facecolor=LIGHT.paper, metadata={"Description": words})


if __name__ == "__main__":
    draw_gain(RESULTS, IMAGES / "gain.png")
    draw_steps(IMAGES / "steps.png")
